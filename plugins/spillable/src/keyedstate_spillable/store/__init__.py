"""The store of spilled entries, and the rows of a table in it."""
