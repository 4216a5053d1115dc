"""Compares the output of the killed and continued stream with a Spark batch query over the same flights.

A process of its own, which imports no keyed operator: the batch answer is independent of the stream.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyedstate.cli.demo.flights import SPARK_SCHEMA


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


def stream_answer(output: DataFrame) -> DataFrame:
    """Return the same from the stream's running totals.

    A flight that was lost or counted twice makes the last running count or the number of rows wrong, or has a
    running count appear twice.
    """
    return output.groupBy("operator", "key").agg(
        f.max("flights").alias("flights"),
        f.max_by("delay", "flights").alias("delay"),
        f.sort_array(f.collect_list("new_destination")).alias("destinations"),
        f.count("*").alias("rows"),
        f.countDistinct("flights").alias("counts"),
    )


def compare(spark: SparkSession, work: Path) -> dict[str, object]:
    """Return the verdict: keys compared, keys that differ (a few of them in full), the busiest aircraft."""
    flights = spark.read.schema(SPARK_SCHEMA).parquet(str(work / "flights"))
    expected = batch_answer(flights).alias("e")
    found = stream_answer(spark.read.parquet(str(work / "output"))).cache()
    same = f.expr(
        "e.flights <=> s.flights and e.delay <=> s.delay and e.destinations <=> s.destinations "
        "and e.flights <=> s.rows and e.flights <=> s.counts"
    )
    key = f.expr("e.operator <=> s.operator and e.key <=> s.key")
    joined = expected.join(found.alias("s"), key, "full_outer").withColumn("same", same).cache()
    busiest = (
        found.where("operator = 'aircraft' and key is not null")
        .orderBy(f.desc("flights"), "key")
        .select("key", "flights", "delay", f.size("destinations").alias("destinations"))
        .limit(10)
    )
    return {
        "keys": joined.count(),
        "different": joined.where(~f.col("same")).count(),
        "examples": [str(row) for row in joined.where(~f.col("same")).limit(5).collect()],
        "busiest": [row.asDict() for row in busiest.collect()],
    }


def main() -> None:
    """Print the verdict as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("keyedstate demo: batch answer")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps(compare(spark, work)))
    spark.stop()


if __name__ == "__main__":
    main()
