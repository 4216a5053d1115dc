"""What the driver decides before an operator runs, and what it reports afterwards."""
