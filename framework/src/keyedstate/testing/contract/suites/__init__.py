"""The tests of the contract kit, by subject."""
