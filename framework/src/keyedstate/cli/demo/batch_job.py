"""The same question to Spark: a batch query over the flights, and the output that the stream committed.

A process of its own, which imports no keyed operator: the batch answer is independent of the stream.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyedstate.cli.demo.flights import SPARK_SCHEMA, job_of_command_line

PARALLELISM = 2


def spark_session(work: Path) -> SparkSession:
    """Return a local session."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("keyedstate demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(PARALLELISM))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def batch_answer(flights: DataFrame) -> DataFrame:
    """Return flights, delay and destinations by operator and key, as ``GROUP BY`` gives them."""
    aircraft = flights.groupBy(f.lit("aircraft").alias("operator"), f.col("tailnum").alias("key")).agg(
        f.count("*").alias("flights"),
        f.coalesce(f.sum("arr_delay"), f.lit(0)).alias("delay"),
        f.sort_array(f.collect_set("dest")).alias("destinations"),
    )
    origins = flights.groupBy(f.lit("origins").alias("operator"), f.col("origin").alias("key")).agg(
        f.count("*").alias("flights"),
        f.lit(None).cast("long").alias("delay"),
        f.array().cast("array<string>").alias("destinations"),
    )
    return aircraft.union(origins)


def run(work: Path, backend: str) -> None:
    """Write the answer, and the rows of the stream's output."""
    spark = spark_session(work)
    flights = spark.read.schema(SPARK_SCHEMA).parquet(str(work / "flights"))
    batch_answer(flights).write.parquet(str(work / "expected"))
    # Spark reads the files that its sink has committed, and leaves out those of the killed job.
    spark.read.parquet(str(work / "output")).write.parquet(str(work / "committed"))
    spark.stop()


if __name__ == "__main__":
    run(*job_of_command_line())
