"""Savepoints: their format, conversion and restore; snapshots of operators by address."""
