"""Savepoints of the state that Spark's own stateful operators have left in a checkpoint location."""
