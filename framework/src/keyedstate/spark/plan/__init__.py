"""The plan of an operator on the driver: checks, options, routing, metrics."""
