"""What a run of the contract kit found."""
