"""The kinds of keyed state: value, list, map, reducing and aggregating."""
