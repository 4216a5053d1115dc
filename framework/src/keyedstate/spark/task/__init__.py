"""Tasks of keyed operators in Spark's Python workers."""
