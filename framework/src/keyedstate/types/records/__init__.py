"""Serializers of values with named fields: rows, dataclasses and their hierarchies, accumulators."""
