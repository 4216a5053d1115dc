"""Tables of columns in two tiers: arrays in memory, and rows on disk."""
