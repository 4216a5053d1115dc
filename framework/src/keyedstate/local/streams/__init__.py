"""What a user builds: keyed rows, two connected inputs, and the rows that an operator yields."""
