"""Baselines: retained trees that many forks start from, and what makes one equal to its source again."""
