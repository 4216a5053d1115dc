"""Windows over single rows: every assigner, trigger and evictor, with any function."""
