"""Keyed state without Spark: the runner for one machine."""
