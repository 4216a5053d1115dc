"""State of a task and not of a key: lists that are redistributed, and broadcast maps."""
