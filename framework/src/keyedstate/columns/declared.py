"""The columns of rows: declared in any form that a user has, converted to an Arrow schema."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from keyedstate.errors import OutputSchemaError, UnsupportedTypeError
from keyedstate.runtime.output import OutputSchema
from keyedstate.types import TypeSerializer, infer
from keyedstate.types.inference.schemas import is_spark_type

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([<>(),:]))")


def output_schema(declared: object, side: str | None = None) -> OutputSchema:
    """Return what checks the rows of an output, or of a side output, with declared columns.

    Raises
    ------
    OutputSchemaError
    """
    try:
        return OutputSchema(arrow_schema(declared), side)
    except OutputSchemaError as error:
        raise OutputSchemaError(error.reason, declared, side) from error


def arrow_schema(declared: object) -> pa.Schema:
    """Return the Arrow schema of declared columns, as Spark's batches have it.

    Parameters
    ----------
    declared : str, mapping, pyarrow.Schema or StructType
        A string in Spark's syntax, ``"user string, views long not null"``.  A mapping gives each column a
        type of `keyedstate.types` or anything that `infer` takes; its columns may all be null.

    Raises
    ------
    OutputSchemaError
    """
    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, str):
        return _SparkSyntax(declared).schema()
    if isinstance(declared, Mapping):
        return pa.schema([pa.field(name, _column_type(name, type_)) for name, type_ in declared.items()])
    if is_spark_type(declared) and type(declared).__name__ == "StructType":
        try:
            return of_struct_type(declared)
        except Exception as error:  # PySpark's errors are not those of one class in all of its versions
            raise OutputSchemaError(f"{error}".rstrip(".")) from error
    raise OutputSchemaError(f"it is a {type(declared).__name__}")


def of_struct_type(declared: Any) -> pa.Schema:
    """Return a ``StructType`` as Arrow's schema, with instants in UTC on every PySpark."""
    # Only a program that has imported PySpark has a StructType.
    from pyspark.sql.pandas.types import to_arrow_schema

    # Up to 4.2 PySpark always writes UTC; later versions have a parameter.
    arguments: dict[str, Any] = {}
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        arguments["timezone"] = "UTC"
    return to_arrow_schema(declared, **arguments)


def _column_type(name: object, declared: object) -> pa.DataType:
    if not isinstance(name, str):
        raise OutputSchemaError(f"{name!r} is no name of a column")
    if isinstance(declared, pa.DataType):
        return declared
    try:
        serializer: TypeSerializer[Any] = infer(declared)
    except UnsupportedTypeError as error:
        raise OutputSchemaError(f"the column {name!r}: {str(error).rstrip('.')}") from error
    return serializer.arrow_type


class _SparkSyntax:
    """Parses the columns of one string as Spark does, for the types that rows may have."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            found = _TOKEN.match(text, position)
            if found is None:
                raise self._error(f"{text[position:].strip()!r} was not expected")
            self._tokens.append(found[0].strip())
            position = found.end()
        self._next = 0

    def schema(self) -> pa.Schema:
        """Parse the text."""
        fields = self._fields(lambda: self._peek() == "")
        return pa.schema(fields)

    def _fields(self, at_end: Callable[[], bool]) -> list[pa.Field]:
        fields: list[pa.Field] = []
        while not at_end() or fields:
            name = self._name()
            self._skip(":")
            type_ = self._type(name)
            nullable = not self._skip("not", "null")
            if self._skip("comment"):
                self._take("a comment")
            fields.append(pa.field(name, type_, nullable))
            if not self._skip(","):
                break
        if not at_end():
            raise self._error(f"{self._peek()!r} was not expected")
        return fields

    def _name(self) -> str:
        token = self._take("the name of a column")
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not (token[0].isalnum() or token[0] == "_"):
            raise self._error(f"{token!r} is no name of a column")
        return token

    def _type(self, column: str) -> pa.DataType:
        word = self._take(f"the type of {column!r}").lower()
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word in {"decimal", "dec", "numeric"}:
            return self._decimal()
        if word in {"varchar", "char"}:
            self._numbers()
            return pa.string()
        if word == "array":
            self._expect("<")
            element = self._type(column)
            self._expect(">")
            return pa.list_(pa.field("element", element))
        if word == "map":
            self._expect("<")
            key = self._type(column)
            self._expect(",")
            item = self._type(column)
            self._expect(">")
            return pa.map_(key, item)
        if word == "struct":
            self._expect("<")
            fields = self._fields(lambda: self._peek() == ">")
            self._expect(">")
            return pa.struct(fields)
        raise self._error(
            f"the column {column!r} has the type {word!r}, which is not known here; give a pyarrow.Schema"
        )

    def _decimal(self) -> pa.DataType:
        digits = self._numbers() if self._peek() == "(" else []
        precision, scale = {0: (10, 0), 1: (*digits, 0)}.get(len(digits), tuple(digits))
        try:
            return pa.decimal128(precision, scale)
        except ValueError as error:
            raise self._error(str(error)) from error

    def _numbers(self) -> list[int]:
        self._expect("(")
        numbers = [self._number()]
        while len(numbers) < 2 and self._skip(","):
            numbers.append(self._number())
        self._expect(")")
        return numbers

    def _number(self) -> int:
        token = self._take("a number")
        if not token.isdecimal():
            raise self._error(f"{token!r} is no number")
        return int(token)

    # -- tokens -------------------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> str:
        place = self._next + ahead
        return self._tokens[place] if place < len(self._tokens) else ""

    def _take(self, expected: str) -> str:
        token = self._peek()
        if not token:
            raise self._error(f"it ends where {expected} was expected")
        self._next += 1
        return token

    def _skip(self, *words: str) -> bool:
        if any(self._peek(ahead).lower() != word for ahead, word in enumerate(words)):
            return False
        self._next += len(words)
        return True

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            found = self._peek()
            raise self._error(f"{mark!r} was expected" + (f" and not {found!r}" if found else " at its end"))

    def _error(self, reason: str) -> OutputSchemaError:
        return OutputSchemaError(f"in {self._text!r} {reason}")
