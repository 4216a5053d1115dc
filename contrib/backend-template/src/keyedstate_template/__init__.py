"""A state backend to copy: the smallest that keeps the whole contract."""
