"""The state backend ``rocksdb``: state larger than memory, in a RocksDB database per task."""
