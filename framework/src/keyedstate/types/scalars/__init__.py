"""Serializers of single values: numbers, texts, times, enums, windows, and pickled objects."""
