"""Bringing what a fork changed to the host: three-way by path, all of it or none of it, and back again."""
