"""What runs a function over the rows of one partition."""
