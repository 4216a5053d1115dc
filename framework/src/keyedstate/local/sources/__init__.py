"""Sources: rows in channels, each of which can be read again from an offset."""
