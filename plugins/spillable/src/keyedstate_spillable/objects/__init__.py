"""Tables of objects in two tiers: copy-on-write maps in memory, and rows on disk."""
