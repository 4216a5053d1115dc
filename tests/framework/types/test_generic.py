"""Generic values: pickles that are not opened before a program asks for them, and how to forbid them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from keyedstate import types
from keyedstate.errors import GenericTypeForbiddenError, UnreadableGenericValueError, ValueTypeError
from keyedstate.types import GLOBAL_WINDOW, VOID_NAMESPACE, SerializerSnapshot, TimeWindow

PICKLED = types.pickled()


class Counter:
    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counter) and self.seen == other.seen

    __hash__ = None  # type: ignore[assignment]


class Witness:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def restored() -> Any:
    return SerializerSnapshot.from_json(PICKLED.snapshot().to_json()).restore_serializer()


def test_any_object_is_equal_after_bytes_and_columns() -> None:
    counter = Counter()
    counter.seen["a"] = 1
    for value in (counter, {1: [counter]}, lambda: 7, Counter, 2**100, frozenset({1}), "text"):
        back = PICKLED.from_bytes(PICKLED.to_bytes(value))
        [again, nothing] = PICKLED.from_arrow(PICKLED.to_arrow([value, None]))
        assert nothing is None
        for found in (back, again):
            assert found() == 7 if callable(value) and value is not Counter else found == value
    assert PICKLED.arrow_type == pa.binary()


def test_a_copy_is_what_a_restart_would_give() -> None:
    counter = Counter()
    copied = PICKLED.copy({"c": counter})
    counter.seen["later"] = 1
    assert copied == {"c": Counter()}
    deep: list[Any] = []
    for _ in range(400):  # copy.deepcopy ends at some 300
        deep = [deep]
    assert len(PICKLED.copy(deep)) == 1


def test_nothing_is_unpickled_before_a_program_registers_the_state(tmp_path: Path) -> None:
    """What runs code when it is opened stays closed in a restore, a further checkpoint and an inspection."""
    trace = tmp_path / "opened"
    column = PICKLED.to_arrow([Witness(trace), None])
    reader = restored()
    opaque = reader.from_arrow(column)
    assert reader.to_arrow(opaque) == column
    assert reader.from_bytes(reader.to_bytes(opaque[0])) == opaque[0]
    assert reader.copy(opaque[0]) is opaque[0]
    with pytest.raises(ValueTypeError):
        reader.check(Witness(trace))
    assert not trace.exists()
    conversion = PICKLED.conversion_from(reader)
    assert conversion is not None
    conversion(opaque[0])
    assert trace.exists()


def test_generic_values_have_no_evolution() -> None:
    assert PICKLED.resolve_compatibility(restored().snapshot()).is_as_is
    assert PICKLED.resolve_compatibility(types.BYTES.snapshot()).is_incompatible
    assert types.BYTES.resolve_compatibility(PICKLED.snapshot()).is_incompatible
    assert PICKLED.conversion_from(PICKLED) is None


def test_a_value_whose_class_is_gone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "shop_that_closed.py").write_text("class Order: pass", encoding="utf-8")
    code = textwrap.dedent("""
        import sys
        from keyedstate import types
        sys.path.append(sys.argv[1])
        from shop_that_closed import Order
        sys.stdout.buffer.write(types.pickled().to_bytes(Order()))
    """)
    data = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True).stdout
    with pytest.raises(
        UnreadableGenericValueError, match=r"No module named 'shop_that_closed'.*importable again"
    ):
        PICKLED.from_bytes(data)
    conversion = PICKLED.conversion_from(restored())
    assert conversion is not None
    with pytest.raises(UnreadableGenericValueError):
        conversion(restored().from_bytes(data))
    with pytest.raises(UnreadableGenericValueError):
        PICKLED.from_arrow(pa.array([b"no pickle"]))


def test_classes_of_the_main_script_travel_with_their_values(tmp_path: Path) -> None:
    """As a process function's do: another process has no module ``__main__`` that would define them."""
    code = textwrap.dedent("""
        import sys
        from keyedstate import types
        class Order:
            def total(self):
                return 42
        sys.stdout.buffer.write(types.pickled().to_bytes([Order()]))
    """)
    data = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    [order] = PICKLED.from_bytes(data)
    assert order.total() == 42


def test_records_and_enums_of_the_main_script_need_no_module_at_all(tmp_path: Path) -> None:
    """The serializer is sent with the function; what it wrote is read by one of the next run."""
    code = textwrap.dedent("""
        import enum, sys
        from dataclasses import dataclass, field
        import cloudpickle
        from keyedstate import types
        class Color(enum.Enum):
            RED = 1
        @dataclass
        class Click:
            url: str
            color: Color = Color.RED
            tags: list[str] = field(default_factory=list)
        serializer = types.infer(Click)
        sent = cloudpickle.loads(cloudpickle.dumps(serializer))
        assert sent == serializer
        sys.stdout.buffer.write(cloudpickle.dumps((serializer, serializer.to_bytes(Click("a")))))
    """)
    runs = [
        pickle.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        for _ in range(2)
    ]
    (first, data), (second, again) = runs
    assert data == again
    assert first.python_type is not second.python_type
    assert first.defaults == second.defaults == {"color", "tags"}
    reader = SerializerSnapshot.from_json(first.snapshot().to_json()).restore_serializer()
    assert second.resolve_compatibility(reader.snapshot()).is_as_is
    click = second.conversion_from(reader)(reader.from_bytes(data))
    assert type(click) is second.python_type
    second.check(click)
    assert (click.url, click.color.name, click.tags) == ("a", "RED", [])


@dataclass
class Holder:
    items: list[Any]


@pytest.mark.parametrize(
    ("serializer", "path"),
    [
        (PICKLED, ""),
        (types.map_of(types.STRING, types.list_of(PICKLED)), "value.element"),
        (types.record_of(Holder), "items.element.inner"),
        (types.row_of({"a": types.INT64, "b c": PICKLED}), "b c"),
        (types.tuple_of(types.INT64, types.nullable(PICKLED)), "f1.inner"),
    ],
    ids=str,
)
def test_a_state_with_generic_parts_can_be_refused_by_name_and_place(serializer: Any, path: str) -> None:
    with pytest.raises(GenericTypeForbiddenError, match=r"'clicks'.*types\.generic=allow") as raised:
        types.refuse_generic("clicks", serializer)
    assert (raised.value.state, raised.value.path) == ("clicks", path)
    assert list(types.generic_parts(serializer)) == [path]
    copy = pickle.loads(cloudpickle.dumps(raised.value))
    assert str(copy) == str(raised.value)


def test_a_state_without_generic_parts_is_not_refused() -> None:
    types.refuse_generic("clicks", types.map_of(types.STRING, types.list_of(types.BYTES)))


@pytest.mark.parametrize("value", [TimeWindow(1, 2), GLOBAL_WINDOW, VOID_NAMESPACE])
def test_pickled_windows_name_a_public_module(value):
    """A window that a user keeps in generic state must be readable after a move inside the package."""
    data = pickle.dumps(value)
    assert b"keyedstate.types\x94" in data
    assert pickle.loads(data) == value
