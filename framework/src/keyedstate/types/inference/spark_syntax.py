"""Types and columns in the syntax of Spark's DDL, without Spark: ``"user string, views array<long>"``."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa

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


class SparkSyntaxError(ValueError):
    """A text that Spark would not parse, or with a type that rows may not have."""


def parse_schema(text: str) -> pa.Schema:
    """Return columns, with the types that Spark's batches have; raises `SparkSyntaxError`."""
    return _Parser(text).schema()


def parse_type(text: str) -> pa.DataType:
    """Return one type, ``"map<string, long>"``; columns are a struct of them.  Raises `SparkSyntaxError`."""
    try:
        return _Parser(text).type()
    except SparkSyntaxError as error:
        if not text.strip():
            raise
        try:
            columns = parse_schema(text)
        except SparkSyntaxError as other:
            # Of two names or more the text is one of columns.
            raise (other if len(text.split()) > 1 else error) from None
    return pa.struct(list(columns))


class _Parser:
    """The tokens of one string, and the position among them."""

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
        """Parse the whole text as columns."""
        return pa.schema(self._fields(lambda: self._peek() == ""))

    def type(self) -> pa.DataType:
        """Parse the whole text as one type."""
        found = self._type("")
        if self._peek():
            raise self._error(f"{self._peek()!r} was not expected")
        return found

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
        word = self._take(f"the type of {column!r}" if column else "a type").lower()
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
        of = f"the column {column!r} has the type {word!r}" if column else f"{word!r} is named"
        raise self._error(f"{of}, which is not known here; give a pyarrow.Schema")

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

    def _error(self, reason: str) -> SparkSyntaxError:
        return SparkSyntaxError(f"in {self._text!r} {reason}")
