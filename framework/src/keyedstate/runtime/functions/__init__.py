"""The functions that users write: how they are verified before a job starts, and how their errors look."""
