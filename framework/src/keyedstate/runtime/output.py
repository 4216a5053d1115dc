"""Output rows as Arrow batches, checked against the declared schema.

Arrow loses data silently (1.5 becomes 1 in an integer column, bytes become a string, an unknown struct field
vanishes), and its errors name neither column nor key. So the Python types of each column are checked first.
Where all of them are the declared type's own, which is one ``set(map(type, column))``, a value costs nothing
more.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.errors import (
    OutputBatchError,
    OutputRowError,
    OutputSchemaError,
    OutputSizeError,
    OutputTypeError,
    did_you_mean,
    shortened,
)
from keyedstate.row_path import are_of, columns_of
from keyedstate.types.contract.arrow_columns import instants_column, longs_column, text_column
from keyedstate.types.contract.transposing import transposed

_NONE = type(None)
#: What pyarrow raises for a value of the right Python type that the Arrow type cannot hold.
_CONVERSION_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)


class OutputSchema:
    """The declared columns of an operator's output, or of the side output `side`.

    A field of the schema that is not nullable refuses None. Raises `OutputSchemaError` for no column, a
    repeated name, or a type that Python values cannot be checked against.
    """

    def __init__(self, schema: pa.Schema, side: str | None = None) -> None:
        names = list(schema.names)
        if not names:
            raise OutputSchemaError("it has no column")
        for name in names:
            if names.count(name) > 1:
                raise OutputSchemaError(f"the column {name!r} appears {names.count(name)} times")
        self.schema = schema
        self._side = side
        self._names = names
        self._getters = [itemgetter(index) for index in range(len(names))]
        prefix = "" if side is None else f"{side}."
        self._columns = [_column_of(field.type, field.nullable, prefix + field.name) for field in schema]

    def __reduce__(self) -> tuple[type[OutputSchema], tuple[pa.Schema, str | None]]:
        return OutputSchema, (self.schema, self._side)

    def to_batch(
        self, rows: Sequence[Any], key_of: Callable[[int], object] = lambda row: None
    ) -> pa.RecordBatch:
        """Return rows, each a tuple, list or dict, as one record batch.

        `key_of` returns the key of a row by its index, for an error message. Raises `OutputRowError` where a
        row does not have exactly the declared columns, and `OutputTypeError` where a value does not fit its
        column.
        """
        arrays = []
        for column, values in zip(self._columns, self._transposed(rows, key_of), strict=True):
            try:
                array = column.to_arrow(values)
            except (_Refused, *_CONVERSION_ERRORS) as error:
                raise _first_refusal(column, values, key_of) from error
            if isinstance(array, pa.ChunkedArray):
                raise OutputSizeError(column.path, len(rows))
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def conform(self, given: Any) -> list[pa.RecordBatch]:
        """Return a batch or table of a function as batches of the declared schema.

        Raises `OutputBatchError` for another object, other columns than declared, or values that a cast would
        change.
        """
        if not isinstance(given, (pa.RecordBatch, pa.Table)):
            raise self._batch_error(f"it is a {type(given).__name__}")
        if given.schema.names != self._names:
            if sorted(given.schema.names) != sorted(self._names):
                raise self._batch_error(f"it has the column(s) {', '.join(given.schema.names)}")
            given = given.select(self._names)
        columns = []
        for field, column in zip(self.schema, given.columns, strict=True):
            if column.null_count and not field.nullable:
                raise self._batch_error(f"there are nulls in the column {field.name!r}")
            if column.type != field.type:
                try:
                    column = column.cast(field.type)
                except pa.ArrowException as error:
                    reason = f"its column {field.name!r} is {column.type}, declared is {field.type}: {error}"
                    raise self._batch_error(reason) from error
            columns.append(column)
        if isinstance(given, pa.RecordBatch):
            return [pa.RecordBatch.from_arrays(columns, schema=self.schema)]
        return list(pa.Table.from_arrays(columns, schema=self.schema).to_batches())

    def _batch_error(self, reason: str) -> OutputBatchError:
        return OutputBatchError(None, reason, self._names, self._side)

    def _transposed(self, rows: Sequence[Any], key_of: Callable[[int], object]) -> Sequence[Sequence[Any]]:
        columns = columns_of(rows if type(rows) is list else list(rows), len(self._names))
        if columns is None:
            rows = [self._row(row, index, key_of) for index, row in enumerate(rows)]
            columns = [list(map(getter, rows)) for getter in self._getters]
        return columns

    def _row(self, row: Any, index: int, key_of: Callable[[int], object]) -> Sequence[Any]:
        names = self._names
        if isinstance(row, (tuple, list)):
            if len(row) == len(names):
                return row
            reason = f"has {len(row)} value(s)"
        elif isinstance(row, Mapping):
            unknown = [name for name in row if name not in names]
            missing = [name for name in names if name not in row]
            if not unknown and not missing:
                return [row[name] for name in names]
            if unknown:
                hint = did_you_mean(str(unknown[0]), missing or names).strip(" ?")
                reason = f"has the unknown column {unknown[0]!r}" + (f" ({hint}?)" if hint else "")
            else:
                reason = f"lacks the column(s) {', '.join(map(repr, missing))}"
        else:
            reason = f"is a {type(row).__name__} and no row"
        raise OutputRowError(key_of(index), reason, shortened(row), names, self._side)


class _Refused(Exception):
    """A value that a column refuses, without its row: columns are checked one by one."""

    def __init__(self, column: _Column, value: object, reason: str = "") -> None:
        super().__init__(column.path)
        self.column = column
        self.value = value
        self.reason = reason


def _first_refusal(
    column: _Column, values: Sequence[object], key_of: Callable[[int], object]
) -> OutputTypeError:
    """Return the error of the first row that a column refuses."""
    for index, value in enumerate(values):
        try:
            column.to_arrow([value])
        except _Refused as refused:
            culprit = refused.column
            given, reason = refused.value, refused.reason
        except _CONVERSION_ERRORS as error:
            culprit, given, reason = column, value, str(error)
        else:
            continue
        shown = f"{type(given).__name__} {shortened(given)}"
        return OutputTypeError(key_of(index), culprit.path, culprit.expected, shown, reason)
    raise AssertionError(f"no single value of {column.path!r} is refused, though the column is")


class _Column(ABC):
    """One column or nested part: its Arrow type, and the Python types of the values that it takes."""

    #: Python types that need no conversion.
    own: frozenset[type]

    def __init__(self, arrow_type: pa.DataType, nullable: bool, path: str) -> None:
        self.arrow_type = arrow_type
        self.path = path
        self.nullable = nullable
        self.accepted = self.own | {_NONE} if nullable else self.own

    @property
    def expected(self) -> str:
        """The type as an error names it."""
        takes = " or ".join(sorted(kind.__name__ for kind in self.own)) or "None"
        return f"{self.arrow_type}{'' if self.nullable else ' not null'} ({takes})"

    def to_arrow(self, values: Sequence[Any]) -> pa.Array | pa.ChunkedArray:
        """Convert values that `checked` accepts."""
        return pa.array(self.checked(values), type=self.arrow_type)

    def checked(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values in a form that pyarrow converts without loss, or raise `_Refused`."""
        if not are_of(values, self.accepted):
            values = [value if type(value) in self.accepted else self.adopt(value) for value in values]
        return self.looked_into(values)

    def adopt(self, value: Any) -> Any:
        """Convert a value of another type to one of the `own` types, or refuse it."""
        if isinstance(value, np.generic):
            plain = value.item()
            if type(plain) in self.accepted:
                return plain
        raise _Refused(self, value)

    def looked_into(self, values: Sequence[Any]) -> Sequence[Any]:
        """Check the contents of values, all of which have accepted types."""
        return values


class _Scalar(_Column):
    def __init__(
        self,
        own: tuple[type, ...],
        not_from: tuple[type, ...],
        arrow_type: pa.DataType,
        nullable: bool,
        path: str,
    ) -> None:
        self.own = frozenset(own)
        self._bases = own
        self._not_from = not_from
        super().__init__(arrow_type, nullable, path)

    def adopt(self, value: Any) -> Any:
        # Subclasses (an IntEnum, one of str) are fine, but bool is no number and datetime no date.
        if self._bases and isinstance(value, self._bases) and not isinstance(value, self._not_from):
            return value
        return super().adopt(value)


class _LongInteger(_Scalar):
    """A column of 64-bit integers, the most frequent type."""

    def to_arrow(self, values: Sequence[Any]) -> pa.Array | pa.ChunkedArray:
        made = longs_column(values, self.arrow_type)
        return super().to_arrow(values) if made is None else made


class _Text(_Scalar):
    """A column of strings with 32-bit offsets."""

    def to_arrow(self, values: Sequence[Any]) -> pa.Array | pa.ChunkedArray:
        made = text_column(values, self.arrow_type)
        return super().to_arrow(values) if made is None else made


class _Timestamp(_Scalar):
    def to_arrow(self, values: Sequence[Any]) -> pa.Array | pa.ChunkedArray:
        made = instants_column(values, self.arrow_type) if self.arrow_type.unit == "us" else None
        return super().to_arrow(values) if made is None else made

    def looked_into(self, values: Sequence[Any]) -> Sequence[Any]:
        """Refuse a value whose zone would have to be guessed or dropped."""
        zoned = self.arrow_type.tz is not None
        for value in values:
            if value is not None and (value.tzinfo is not None) is not zoned:
                reason = (
                    "a datetime with a time zone is needed, such as datetime.now(timezone.utc)"
                    if zoned
                    else "a datetime without time zone is needed"
                )
                raise _Refused(self, value, reason)
        return values


class _List(_Column):
    own = frozenset((list, tuple))

    def __init__(self, arrow_type: pa.DataType, nullable: bool, path: str) -> None:
        super().__init__(arrow_type, nullable, path)
        field = arrow_type.value_field
        self._element = _column_of(field.type, field.nullable, f"{path}.element")

    def adopt(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.tolist()
        if isinstance(value, (list, tuple)):
            return value
        return super().adopt(value)

    def looked_into(self, values: Sequence[Any]) -> Sequence[Any]:
        flat = list(chain.from_iterable(value for value in values if value is not None))
        elements = self._element.checked(flat)
        if elements is flat:
            return values
        rest = iter(elements)
        return [None if value is None else [next(rest) for _ in value] for value in values]


class _Map(_Column):
    own = frozenset((dict,))

    def __init__(self, arrow_type: pa.DataType, nullable: bool, path: str) -> None:
        super().__init__(arrow_type, nullable, path)
        self._key = _column_of(arrow_type.key_type, False, f"{path}.key")
        item = arrow_type.item_field
        self._item = _column_of(item.type, item.nullable, f"{path}.value")

    def adopt(self, value: Any) -> Any:
        return dict(value) if isinstance(value, Mapping) else super().adopt(value)

    def looked_into(self, values: Sequence[Any]) -> Sequence[Any]:
        present = [value for value in values if value is not None]
        keys = self._key.checked(list(chain.from_iterable(present)))
        items = self._item.checked(list(chain.from_iterable(value.values() for value in present)))
        pairs = zip(keys, items, strict=True)
        return [None if value is None else [next(pairs) for _ in value] for value in values]


class _Struct(_Column):
    own = frozenset((dict, tuple))

    def __init__(self, arrow_type: pa.DataType, nullable: bool, path: str) -> None:
        super().__init__(arrow_type, nullable, path)
        fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
        self._names = [field.name for field in fields]
        if not fields or len(set(self._names)) < len(fields):
            raise OutputSchemaError(f"the struct column {path!r} has no field or two of one name")
        self._fields = [_column_of(field.type, field.nullable, f"{path}.{field.name}") for field in fields]

    def adopt(self, value: Any) -> Any:
        if isinstance(value, (tuple, Mapping)):  # a pyspark Row, a named tuple
            return value
        return super().adopt(value)

    def looked_into(self, values: Sequence[Any]) -> Sequence[Any]:
        rows = [self._values(value) for value in values if value is not None]
        columns = transposed(rows, len(self._fields))
        checked = [field.checked(column) for field, column in zip(self._fields, columns, strict=True)]
        present = (dict(zip(self._names, row, strict=True)) for row in zip(*checked, strict=True))
        return [None if value is None else next(present) for value in values]

    def _values(self, value: Any) -> Sequence[Any]:
        if isinstance(value, tuple):
            if len(value) != len(self._names):
                raise _Refused(self, value, f"it has {len(value)} values for {len(self._names)} fields")
            return value
        if set(value) != set(self._names):
            raise _Refused(self, value, f"its names must be {', '.join(self._names)}")
        return [value[name] for name in self._names]


_is = pa.types
#: Predicates of Arrow types, the Python types of their values, and subclasses of these that are refused.
_SCALARS: tuple[tuple[tuple[Callable[[pa.DataType], bool], ...], tuple[type, ...], tuple[type, ...]], ...] = (
    ((_is.is_integer,), (int,), (bool,)),
    ((_is.is_floating,), (float, int), (bool,)),
    ((_is.is_boolean,), (bool,), ()),
    ((_is.is_string, _is.is_large_string), (str,), ()),
    ((_is.is_binary, _is.is_large_binary), (bytes, bytearray), ()),
    ((_is.is_decimal,), (Decimal, int), (bool,)),
    ((_is.is_date,), (dt.date,), (dt.datetime,)),
    ((_is.is_timestamp,), (dt.datetime,), ()),
    ((_is.is_time,), (dt.time,), ()),
    ((_is.is_duration,), (dt.timedelta,), ()),
    ((_is.is_null,), (), ()),
)


def _column_of(arrow_type: pa.DataType, nullable: bool, path: str) -> _Column:
    """Return the check of one type; `OutputSchemaError` for one that has none."""
    for predicates, own, not_from in _SCALARS:
        if any(is_type(arrow_type) for is_type in predicates):
            kind = _Scalar
            if _is.is_int64(arrow_type):
                kind = _LongInteger
            elif _is.is_string(arrow_type):
                kind = _Text
            elif _is.is_timestamp(arrow_type):
                kind = _Timestamp
            return kind(own, not_from, arrow_type, nullable, path)
    if _is.is_list(arrow_type) or _is.is_large_list(arrow_type):
        return _List(arrow_type, nullable, path)
    if _is.is_map(arrow_type):
        return _Map(arrow_type, nullable, path)
    if _is.is_struct(arrow_type):
        return _Struct(arrow_type, nullable, path)
    raise OutputSchemaError(
        f"the column {path!r} has the type {arrow_type}, which process functions cannot give"
    )
