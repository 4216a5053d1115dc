"""Serializers of values made of others: lists, sets, maps, tuples, arrays, nullable and timed values."""
