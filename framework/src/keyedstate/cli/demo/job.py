"""The demo's Spark job: a process of its own, so that it can be killed."""

from __future__ import annotations

from pathlib import Path

import keyedstate as ks
from keyedstate.cli.demo.batch_job import spark_session
from keyedstate.cli.demo.flights import SPARK_SCHEMA, job_of_command_line
from keyedstate.cli.demo.functions import OUTPUT_SCHEMA, AircraftLog, OriginCount

#: The keyed operators: uid and key column.
OPERATORS = {"aircraft": "tailnum", "origins": "origin"}


def run(work: Path, backend: str) -> None:
    """Stream all flights through both operators into Parquet files; continues where it was stopped."""
    spark = spark_session(work)
    # The backend is one line of configuration.
    spark.conf.set("spark.keyedstate.backend", backend)
    spark.conf.set("spark.keyedstate.checkpoint.dir", str(work / "state"))
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
    run(*job_of_command_line())
