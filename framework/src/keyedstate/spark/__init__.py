"""Keyed process functions on Spark DataFrames; `keyedstate` itself gives what a job needs of it."""
