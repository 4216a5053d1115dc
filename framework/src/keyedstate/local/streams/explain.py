"""What a run would do, in words."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from keyedstate.columns.spark_types import spark_name
from keyedstate.local.run.chain import Chain
from keyedstate.local.run.plan import Input, OperatorPlan
from keyedstate.local.sources.source import Source
from keyedstate.options import BACKEND, CHECKPOINT_INTERVAL, CHECKPOINT_MODE


def explained(plan: OperatorPlan) -> str:
    """Return a description of an operator and of those that it reads from."""
    return "\n".join(_lines(plan, "", in_processes=Chain.of(plan).has_several_tasks))


def _lines(plan: OperatorPlan, indent: str, *, in_processes: bool) -> Iterator[str]:
    partitions, config = plan.partitions, plan.config
    name = f" {plan.folder.uid!r}" if plan.folder is not None else ""
    yield f"{indent}{partitions.function_name}{name}"
    keys = ", ".join(f"{column} {type_}" for column, type_ in partitions.key_columns)
    yield f"{indent}  key: {keys}, in {partitions.max_parallelism} key groups"
    yield f"{indent}  columns: {_columns(plan.outputs.schema)}"
    yield f"{indent}  backend: {config[BACKEND]}, tasks: {partitions.parallelism}"
    if plan.folder is None:
        yield f"{indent}  state: of this run alone; all timers fire at the end of the input"
    else:
        interval = config[CHECKPOINT_INTERVAL] / 1000.0
        yield f"{indent}  checkpoints: {plan.folder.location}, every {interval:g} seconds and at the end"
        if in_processes:
            yield f"{indent}  mode: {config[CHECKPOINT_MODE]}"
    for input_ in plan.read.inputs:
        yield from _input(input_, indent, in_processes=in_processes)
    if plan.read.broadcast is not None:
        yield f"{indent}  broadcast: {_columns(plan.read.broadcast.schema)}"


def _input(input_: Input, indent: str, *, in_processes: bool) -> Iterator[str]:
    event_time = input_.columns.event_time
    time = ""
    if event_time is not None:
        time = f", event time {event_time.column} with a delay of {event_time.delay}"
    if isinstance(input_.rows, Source):
        channels = len(input_.rows.channels())
        count = "1 channel" if channels == 1 else f"{channels} channels"
        columns = _columns(input_.columns.schema)
        yield f"{indent}  reads {type(input_.rows).__name__}, {count}{time}: {columns}"
    else:
        yield f"{indent}  reads the rows of{time}"
        yield from _lines(input_.rows.plan, f"{indent}    ", in_processes=in_processes)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {spark_name(field.type)}" for field in schema)
