"""Savepoints: written, converted, and restored from."""
