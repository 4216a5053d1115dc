"""The types that annotations, Spark types and Arrow types describe."""
