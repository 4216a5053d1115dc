"""What a type checker knows of a user's code: mypy runs over a sample that states it."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

SAMPLE = """
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from typing_extensions import assert_type

from keyedstate import types
from keyedstate.runtime import (
    Context,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)
from keyedstate.state import ListState, MapState, ReducingState, Ttl, ValueState
from keyedstate.windows import Trigger, TriggerContext, TriggerResult


@dataclass
class Visit:
    user: str
    seconds: int


class Typed(KeyedProcessFunction[Visit]):
    count = ValueState("count", types.INT64, default=0)
    name = ValueState("name", types.STRING)
    kept = ValueState("kept", types.STRING, ttl=Ttl.of("1 day"))
    living = ValueState("living", types.FLOAT64, 0.0, ttl=Ttl.of("1 day"))
    tags = ListState("tags", types.STRING)
    pages = MapState("pages", types.STRING, types.INT64)
    total = ReducingState("total", lambda a, b: a + b, types.INT64)

    def open(self, ctx: Context) -> None:
        self.same = ctx.state(self.name)
        self.late = ctx.state(ValueState("late", types.INT64))

    def process(self, row: Visit, ctx: Context) -> Iterator[tuple[str, int]]:
        assert_type(row.seconds, int)
        assert_type(self.count.value(), int)
        assert_type(self.name.value(), str | None)
        assert_type(self.kept.value(), str | None)
        assert_type(self.living.value(), float)
        assert_type(self.same.value(), str | None)
        assert_type(self.late.value(), int | None)
        assert_type(self.count.get_many(["a"]), list[int])
        assert_type(self.name.get_many(["a"]), list[str | None])
        assert_type(self.tags.get(), list[str])
        assert_type(self.pages.get("a"), int | None)
        assert_type(self.total.get(), int | None)
        self.name.update(None)
        self.name.update(1)  # E: arg-type
        self.count.update("a")  # E: arg-type
        self.name.value().upper()  # E: union-attr
        row.nothing  # E: attr-defined
        yield row.user, self.count.value() + 1


class Plain(KeyedProcessFunction):
    def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, int]]:
        yield row.user, 1


class Two(KeyedCoProcessFunction[Visit, Any]):
    def process1(self, row: Visit, ctx: Context) -> None:
        assert_type(row.user, str)

    def process2(self, row: Any, ctx: Context) -> None: ...


class Sides(KeyedBroadcastProcessFunction[Any, Visit]):
    def process_broadcast(self, row: Visit, ctx: Any) -> None:
        assert_type(row.user, str)


class Wrong(KeyedProcessFunction[Visit]):
    def process(self, row: str, ctx: Context) -> None: ...  # E: override


class AtThree(Trigger[Any]):
    rows = ReducingState("rows", lambda a, b: a + b, types.INT64)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        assert_type(ctx.state(self.rows).get(), int | None)
        return TriggerResult.FIRE

    def clear(self, window: Any, ctx: TriggerContext) -> None: ...
"""


@pytest.mark.slow
def test_mypy_knows_rows_and_values_and_finds_what_is_wrong(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(SAMPLE, encoding="utf-8")
    config = tmp_path / "mypy.ini"
    source = Path(__file__).resolve().parents[2] / "framework" / "src"
    config.write_text(
        "[mypy]\nstrict = True\npython_version = 3.10\nexplicit_package_bases = True\n"
        f"namespace_packages = True\nmypy_path = {source}\n"
        "[mypy-pyarrow.*,cloudpickle.*,datasketches.*,deltalake.*,py4j.*]\nignore_missing_imports = True\n"
        "[mypy-keyedstate.*]\nfollow_imports = silent\n",
        encoding="utf-8",
    )
    out, complaints, _ = api.run(
        [
            f"--config-file={config}",
            f"--cache-dir={tmp_path / 'cache'}",
            "--show-error-codes",
            "--hide-error-context",
            "--no-error-summary",
            str(sample),
        ]
    )
    found = {
        (int(line.split(":")[1]), line.rsplit("[", 1)[1].rstrip("]"))
        for line in out.splitlines()
        if ": error:" in line
    }
    expected = {
        (number, line.split("# E: ")[1])
        for number, line in enumerate(SAMPLE.splitlines(), 1)
        if "# E: " in line
    }
    assert complaints == ""
    assert found == expected, out
