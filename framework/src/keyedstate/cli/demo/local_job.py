"""The demo's job without Spark: a process of its own, so that it can be killed."""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow.dataset as ds

from keyedstate.cli.demo.functions import OUTPUT_SCHEMA, AircraftLog
from keyedstate.local import keyed


def run(work: Path, backend: str) -> None:
    """Run all flights through the function into Parquet files; continues where it was stopped."""
    config = {"backend": backend, "checkpoint.dir": str(work / "state"), "checkpoint.interval": 0}
    flights = keyed(ds.dataset(work / "flights"), "tailnum", uid="aircraft", config=config)
    flights.process(AircraftLog(), OUTPUT_SCHEMA).write_parquet(work / "output")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--backend", required=True)
    arguments = parser.parse_args()
    run(arguments.work, arguments.backend)
