"""What users declare: assigners, triggers, evictors, functions of windows, and all of it together."""
