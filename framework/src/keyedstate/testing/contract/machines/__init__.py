"""The state machines of the contract kit."""
