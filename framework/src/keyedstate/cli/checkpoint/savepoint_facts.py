"""What a savepoint is, for scripts and for people."""

from __future__ import annotations

from typing import Any

from keyedstate.checkpoint import SavepointFolder
from keyedstate.checkpoint.reading.json_values import time_of
from keyedstate.cli.output import shown_bytes, shown_time


def savepoint_document(savepoint: SavepointFolder) -> dict[str, Any]:
    """Return what a savepoint is, as JSON values; raises as `Savepoint.metadata`."""
    document = savepoint.describe()
    created = time_of(document.pop("created_ms"))
    return {"location": document.pop("location"), "id": document.pop("id"), "created": created, **document}


def savepoint_facts(savepoint: SavepointFolder) -> list[tuple[str, str]]:
    """Return what a savepoint is, for people; raises as `Savepoint.metadata`."""
    spark = savepoint.spark
    position = (
        "none: it cannot be forked" if spark is None else f"epoch {spark.epoch} of query {spark.query_id}"
    )
    return [
        ("savepoint", savepoint.location),
        ("id", savepoint.id),
        ("created", f"{shown_time(savepoint.created_ms)} UTC by keyedstate {savepoint.keyedstate_version}"),
        ("operators", ", ".join(savepoint.operators)),
        ("Spark's offsets", position),
        ("drained", "yes" if savepoint.drained else "no"),
        ("size", shown_bytes(savepoint.data_bytes())),
    ]
