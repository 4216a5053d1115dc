"""Runs of operators on one machine: their plan, their partitions, and the loop that reads and checkpoints."""
