"""A state backend over SQLite, by an ordered byte store of the standard library."""
