"""Where files are: file systems, retries, locks, and copies on the task's own machine."""
