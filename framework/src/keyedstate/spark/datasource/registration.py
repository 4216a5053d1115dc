"""Making the data source known to a session that has not found it by itself."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pyspark

from keyedstate.errors import DataSourceUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let a session read stored state: ``spark.read.format("keyedstate").load(path)``.

    Spark 4 finds the installed package by itself.  It does not find one that is installed as editable or
    that came with ``addPyFile``, nor does a session on which the package was installed later: there this is
    called once.  Calling it again changes nothing.

    Raises
    ------
    DataSourceUnavailableError
        Before Spark 4.
    """
    if importlib.util.find_spec("pyspark.sql.datasource") is None:
        raise DataSourceUnavailableError(pyspark.__version__)
    from keyedstate.spark.datasource.source import KeyedStateDataSource

    spark.dataSource.register(KeyedStateDataSource)
