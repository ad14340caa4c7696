"""Private storage for one path: one contract, several mechanisms."""
