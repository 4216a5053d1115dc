"""Registration of the data source in a session that has not found it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark

from keyedstate.errors import DataSourceUnavailableError
from keyedstate.spark.plan.heartbeat import has_python_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the data source of stored state, ``spark.read.format("keyedstate")``; idempotent.

    Spark 4 finds an installed package when a session starts, but no editable install and none of
    ``addPyFile``.

    Raises
    ------
    DataSourceUnavailableError
        Before Spark 4.
    """
    if not has_python_sources():
        raise DataSourceUnavailableError(pyspark.__version__)
    from keyedstate.spark.datasource.source import KeyedStateDataSource

    spark.dataSource.register(KeyedStateDataSource)
