"""The backend ``rocksdb``: a RocksDB database per task.

Other backends may use its store, which is exported here with the values of its options.
"""

from keyedstate_rocksdb.options import default_options
from keyedstate_rocksdb.store import RocksSpace, RocksStore

__all__ = ["RocksSpace", "RocksStore", "default_options"]
