"""The epoch protocol: who may write, what is published, restored and deleted."""
