"""What a savepoint contains, as JSON and as a table; both raise as `SavepointFolder.metadata`."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from keyedstate.checkpoint.reading.json_values import time_of
from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder
from keyedstate.cli.output import facts, shown_bytes, shown_time


def savepoint_document(savepoint: SavepointFolder) -> dict[str, Any]:
    """Return the facts of a savepoint as JSON values."""
    document = savepoint.describe()
    created = time_of(document.pop("created_ms"))
    return {"location": document.pop("location"), "id": document.pop("id"), "created": created, **document}


def savepoint_table(savepoint: SavepointFolder) -> Table:
    """Return the facts of a savepoint for people."""
    spark, created = savepoint.spark, shown_time(savepoint.created_ms)
    none = "none: it cannot be forked"
    position = none if spark is None else f"epoch {spark.epoch} of query {spark.query_id}"
    return facts(
        [
            ("savepoint", savepoint.location),
            ("id", savepoint.id),
            ("created", f"{created} UTC by keyedstate {savepoint.keyedstate_version}"),
            ("operators", ", ".join(savepoint.operators)),
            ("Spark's offsets", position),
            ("drained", "yes" if savepoint.drained else "no"),
            ("size", shown_bytes(savepoint.data_bytes())),
        ]
    )
