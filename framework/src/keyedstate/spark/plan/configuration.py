"""keyedstate's options in a Spark session."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

from keyedstate.config import SPARK_PREFIX
from keyedstate.options import Configuration


def read_configuration(spark: SparkSession, explicit: Mapping[str, object] | None) -> Configuration:
    """Return the options: explicit ones before Spark's configuration before the environment.

    Raises `UnknownOptionError`.
    """
    return Configuration(explicit, spark=spark_settings(spark), environ=os.environ)


def spark_settings(spark: SparkSession) -> dict[str, str]:
    """Return the settings of keyedstate in a session, also those of ``--conf`` and of its builder."""
    # Before PySpark 4 only SQL lists the settings. SET may redact values, so they are read again.
    listed = getattr(spark.conf, "getAll", None)
    if isinstance(listed, dict):
        return {key: value for key, value in listed.items() if key.startswith(SPARK_PREFIX)}
    keys = [row["key"] for row in spark.sql("SET").collect()]
    return {key: spark.conf.get(key) or "" for key in keys if key.startswith(SPARK_PREFIX)}
