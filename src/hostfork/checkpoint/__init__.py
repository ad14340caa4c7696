"""Checkpoints: what forks held at a moment, by content, in the pool that their storage lies in."""
