"""The epoch protocol: which run may write, what is published, restored and deleted."""
