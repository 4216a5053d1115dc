"""Sinks: where the rows of a run go."""
