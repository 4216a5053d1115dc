"""Declared aggregates of event-time windows, computed by columns."""
