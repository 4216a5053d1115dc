"""A state backend over LMDB, by an ordered byte store whose keys have a greatest length."""
