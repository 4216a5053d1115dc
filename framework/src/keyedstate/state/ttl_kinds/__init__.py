"""The accessors of states with a time to live."""
