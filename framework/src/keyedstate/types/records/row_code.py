"""Functions generated for one kind of row, which write and read its fields without a call for each.

A list or map of rows in an ordered store is bytes, and a loop over the fields of a row costs ten times as
much as the fields themselves.  Only rows of scalars have such functions.  They leave to the loop what is
rare: a None, a view over pages, a value or bytes of another kind.  So it alone decides what is an error.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import TYPE_CHECKING, Any, NamedTuple

from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.record_code import generated_function
from keyedstate.types.scalars.text import SHORT_STRING_HEADS, write_string

if TYPE_CHECKING:
    from keyedstate.types.contract.serializer import TypeSerializer

_STRING = "string"
_DAY_MS = 86_400_000
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()


class _Scalar(NamedTuple):
    """How a value ``{v}`` becomes numbers of a `struct.Struct` and is made of them, ``{v}0`` and ``{v}1``."""

    #: What is true of a value that these lines may write.
    condition: str
    #: Format characters, and an expression for each of them.
    codes: str
    numbers: tuple[str, ...]
    before_writing: str = ""
    #: An expression for the value, and a condition under which the bytes are wrong.
    value: str = "{v}0"
    wrong: str = ""


def _instant(epoch: str, zone: str) -> _Scalar:
    return _Scalar(
        f"{{v}}.__class__ is datetime and {{v}}.tzinfo is {zone}",
        "qi",
        ("{v}t // 1000", "{v}t % 1000 * 1000"),
        f"{{v}}t = {{v}} - {epoch}; "
        "{v}t = ({v}t.days * 86400 + {v}t.seconds) * 1000000 + {v}t.microseconds",
        f"{epoch} + timedelta(0, 0, {{v}}0 * 1000 + {{v}}1 // 1000)",
        "{v}1 % 1000 or not 0 <= {v}1 < 1000000",
    )


def _integer(code: str) -> _Scalar:
    return _Scalar("{v}.__class__ is int", code, ("{v}",))


_SCALARS = {
    "int8": _integer("b"),
    "int16": _integer("h"),
    "int32": _integer("i"),
    "int64": _integer("q"),
    # Every NaN has the same bytes, which the loop writes.
    "float64": _Scalar("{v}.__class__ is float and {v} == {v}", "d", ("{v}",)),
    "boolean": _Scalar("({v} is True or {v} is False)", "B", ("{v}",), value="{v}0 == 1", wrong="{v}0 > 1"),
    "date": _Scalar(
        "{v}.__class__ is date",
        "q",
        (f"({{v}}.toordinal() - {_EPOCH_DAY}) * {_DAY_MS}",),
        value=f"date.fromordinal({{v}}0 // {_DAY_MS} + {_EPOCH_DAY})",
        wrong=f"{{v}}0 % {_DAY_MS}",
    ),
    "timestamp": _instant("utc_epoch", "utc"),
    "timestamp_ntz": _instant("local_epoch", "None"),
}

_GIVEN: dict[str, Any] = {
    "date": dt.date,
    "datetime": dt.datetime,
    "timedelta": dt.timedelta,
    "utc": dt.timezone.utc,
    "utc_epoch": dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc),
    "local_epoch": dt.datetime(1970, 1, 1),
    "heads": SHORT_STRING_HEADS,
    "struct_error": error,
    "input_view": DataInputView,
    "output_view": DataOutputView,
}


def _bytes_of_text(text: str) -> bytes:
    """Return what `write_string` writes, whose length takes two bytes or more, or which is not ASCII."""
    size = len(text) + 1
    if 0x80 <= size < 0x4000 and text.isascii():
        return bytes((size & 0x7F | 0x80, size >> 7)) + text.encode("ascii")
    out = DataOutputView()
    write_string(text, out)
    return out.to_bytes()


class RowCode(NamedTuple):
    """The functions of one kind of row."""

    serialize: Callable[[Any, DataOutputView], None]
    deserialize: Callable[[DataInputView], Any]


def row_code(
    cls: type[Any],
    make: Callable[[Sequence[Any]], Any],
    fields: Sequence[TypeSerializer[Any]],
    mask: bytes,
    loops: RowCode,
) -> RowCode:
    """Return functions for rows of a class; `loops` themselves where a field is no scalar that is known.

    Parameters
    ----------
    cls : type
        A tuple.
    make : callable
        Makes a row of its values.
    fields : sequence of TypeSerializer
    mask : bytes
        What precedes the fields of a row without None.
    loops : RowCode
        They write and read every row, and raise the errors.
    """
    kinds = [field.type_name for field in fields]
    if not {*_SCALARS, _STRING}.issuperset(kinds):
        return loops
    given = {**_GIVEN, "cls": cls, "make": make, "mask": mask, "loop": None, "text": _bytes_of_text}
    values = [f"v{place}" for place in range(len(kinds))]
    conditions, before, parts, reads = [], [], ["mask"], [f"p += {len(mask)}"]
    place = 0
    while place < len(kinds):
        if kinds[place] == _STRING:
            v = values[place]
            conditions.append(f"{v}.__class__ is str")
            parts.append(
                f"heads[len({v})] + {v}.encode('ascii') if len({v}) < {len(SHORT_STRING_HEADS)} and "
                f"{v}.isascii() else text({v})"
            )
            reads += _reads_of_text(v)
            place += 1
            continue
        first, codes, numbers, names, made = place, ">", [], [], []
        while place < len(kinds) and kinds[place] != _STRING:
            scalar, v = _SCALARS[kinds[place]], values[place]
            conditions.append(scalar.condition.format(v=v))
            if scalar.before_writing:
                before.append(scalar.before_writing.format(v=v))
            codes += scalar.codes
            numbers += [number.format(v=v) for number in scalar.numbers]
            names += [f"{v}{n}" for n in range(len(scalar.codes))]
            if scalar.wrong:
                made.append(f"if {scalar.wrong.format(v=v)}: raise ValueError")
            made.append(f"{v} = {scalar.value.format(v=v)}")
            place += 1
        packed = Struct(codes)
        given[f"pack{first}"], given[f"unpack{first}"] = packed.pack, packed.unpack_from
        parts.append(f"pack{first}({', '.join(numbers)})")
        reads += [f"{', '.join(names)}, = unpack{first}(data, p)", f"p += {packed.size}", *made]
    writes = [
        "if value.__class__ is cls and out.__class__ is output_view:",
        f"    {', '.join(values)}, = value",
        f"    if {' and '.join(conditions)}:",
        "        try:",
        *(f"            {line}" for line in before),
        f"            out._buffer += b''.join(({', '.join(parts)}))",
        "            return",
        "        except (struct_error, UnicodeEncodeError):",
        "            pass",
        "loop(value, out)",
    ]
    reading = [
        "data, p = source._data, source._position",
        f"if source.__class__ is input_view and data[p : p + {len(mask)}] == mask:",
        "    try:",
        *(f"        {line}" for line in reads),
        "        source._position = p",
        f"        return make(({', '.join(values)},))",
        "    except (struct_error, IndexError, ValueError, OverflowError):",
        "        pass",
        "return loop(source)",
    ]
    return RowCode(
        generated_function("serialize", ["value", "out"], writes, {**given, "loop": loops.serialize}),
        generated_function("deserialize", ["source"], reading, {**given, "loop": loops.deserialize}),
    )


def _reads_of_text(v: str) -> list[str]:
    """Return lines that read a string of ASCII at `p` whose length takes two bytes at most."""
    return [
        "n, p = data[p], p + 1",
        "if n > 127:",
        "    if data[p] > 127: raise ValueError",
        "    n, p = n & 127 | data[p] << 7, p + 1",
        "q = p + n - 1",
        "if not n or q > source._end: raise ValueError",
        f"{v}, p = str(data[p:q], 'ascii'), q",
    ]
