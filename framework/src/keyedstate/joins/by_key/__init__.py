"""Joins by key alone: a row meets all rows of the other inputs that still live."""
