"""Where Spark finds the data source ``keyedstate`` by itself.

Spark 4 imports every installed package whose name begins with ``pyspark_``, and registers what the package
calls ``DefaultSource``.
"""

from keyedstate.spark.datasource.source import KeyedStateDataSource as DefaultSource

__all__ = ["DefaultSource"]
