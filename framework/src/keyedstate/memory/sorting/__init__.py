"""Sorting by normalized keys: in pages of memory, and in runs on disk."""
