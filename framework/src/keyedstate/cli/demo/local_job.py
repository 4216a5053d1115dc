"""The demo's job without Spark: a process of its own, so that it can be killed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds

from keyedstate.cli.demo.flights import job_of_command_line
from keyedstate.cli.demo.functions import OUTPUT_SCHEMA, AircraftLog
from keyedstate.local import keyed


def run(work: Path, backend: str) -> None:
    """Run all flights through the function into Parquet files; continues where it was stopped."""
    config = {"backend": backend, "checkpoint.dir": str(work / "state"), "checkpoint.interval": 0}
    flights = keyed(ds.dataset(work / "flights"), "tailnum", uid="aircraft", config=config)
    flights.process(AircraftLog(), OUTPUT_SCHEMA).write_parquet(work / "output")


if __name__ == "__main__":
    run(*job_of_command_line())
