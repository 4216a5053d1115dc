"""What the Spark jobs of their own share, which tests start as processes: their session, and their query."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def session(folder: Path, master: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session with all its files in a folder, the states of operators among them."""
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.keyedstate.checkpoint.dir", str(folder / "state"))
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows_of(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    """Return the rows of a folder's JSON files, of which each is an epoch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))


def run_to_the_end(out: DataFrame, folder: Path) -> None:
    """Run a query into Parquet files until its input is used up."""
    (
        out.writeStream.format("parquet")
        .option("path", str(folder / "output"))
        .option("checkpointLocation", str(folder / "spark"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
