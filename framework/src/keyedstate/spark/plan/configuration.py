"""What is set of keyedstate's options in a Spark session."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

from keyedstate.config import SPARK_PREFIX
from keyedstate.options import Configuration


def read_configuration(spark: SparkSession, explicit: Mapping[str, object] | None) -> Configuration:
    """Return the options by falling precedence: explicit, Spark's configuration, the environment.

    Raises
    ------
    UnknownOptionError
        For a kernel option that does not exist.
    """
    return Configuration(explicit, spark=spark_settings(spark), environ=os.environ)


def spark_settings(spark: SparkSession) -> dict[str, str]:
    """Return what is set under our prefix, by ``--conf``, the session builder or ``spark.conf.set``."""
    # PySpark 4 lists the session's settings; before, SQL does. SET may redact values, so they are read again.
    listed = getattr(spark.conf, "getAll", None)
    if isinstance(listed, dict):
        return {key: value for key, value in listed.items() if key.startswith(SPARK_PREFIX)}
    keys = [row["key"] for row in spark.sql("SET").collect()]
    return {key: spark.conf.get(key) or "" for key in keys if key.startswith(SPARK_PREFIX)}
