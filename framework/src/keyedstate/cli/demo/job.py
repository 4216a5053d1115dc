"""The demo's Spark job: a process of its own, so that it can be killed."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

import keyedstate as ks
from keyedstate.cli.demo.flights import SPARK_SCHEMA
from keyedstate.cli.demo.functions import OUTPUT_SCHEMA, AircraftLog, OriginCount

#: The keyed operators: uid and key column.
OPERATORS = {"aircraft": "tailnum", "origins": "origin"}
PARALLELISM = 2


def spark_session(work: Path, backend: str) -> SparkSession:
    """Return a local session; the backend is one line of configuration."""
    return (
        SparkSession.builder.master("local[2]")
        .appName("keyedstate demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(PARALLELISM))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.keyedstate.backend", backend)
        .config("spark.keyedstate.checkpoint.dir", str(work / "state"))
        .getOrCreate()
    )


def run(work: Path, backend: str) -> None:
    """Stream all flights through both operators into Parquet files; continues where it was stopped."""
    spark = spark_session(work, backend)
    spark.sparkContext.setLogLevel("ERROR")
    flights = (
        spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(work / "flights"))
    )
    aircraft = ks.keyed(flights, OPERATORS["aircraft"], uid="aircraft").process(AircraftLog(), OUTPUT_SCHEMA)
    origins = ks.keyed(flights, OPERATORS["origins"], uid="origins").process(OriginCount(), OUTPUT_SCHEMA)
    query = (
        aircraft.union(origins)
        .writeStream.format("parquet")
        .option("path", str(work / "output"))
        .option("checkpointLocation", str(work / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--backend", required=True)
    arguments = parser.parse_args()
    run(arguments.work, arguments.backend)
