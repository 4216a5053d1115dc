"""The state backend ``spillable``: Python objects in memory, and in RocksDB what memory has no room for."""
