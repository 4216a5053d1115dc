"""The states of one backend by name, their restored tables, and their snapshots."""
