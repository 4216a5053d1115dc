"""The DataFrame API, and the columns of what goes in and comes out."""
