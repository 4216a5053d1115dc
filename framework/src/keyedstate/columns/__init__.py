"""The columns of rows without Spark: as a user declares them, with their key, and of inputs together."""
