"""The DataFrame API, and the columns of its inputs and outputs."""
