"""Small JSON files that prove their own integrity.

A document is one line of canonical JSON with four members: ``kind``, ``version``, ``body`` and ``checksum``,
the SHA-256 of the canonical JSON of the other three.  Canonical means sorted names, no spaces, ASCII only.  A
reader renders what it has parsed and compares it with the given bytes, so it notices every changed byte, even
one that JSON ignores.  Kind, version and checksum keep this form in every later version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from keyedstate.checkpoint.format.json_converter import from_json
from keyedstate.errors import CorruptFileError, FormatVersionError, IncompleteEpochError, KeyedStateError

T = TypeVar("T")


def encode_document(kind: str, version: int, body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a document; the same body always gives the same bytes."""
    content = {"kind": kind, "version": version, "body": body}
    checksum = hashlib.sha256(_canonical(content)).hexdigest()
    return _canonical({**content, "checksum": checksum}) + b"\n"


def decode_document(path: str, kind: str, supported: int, data: bytes) -> dict[str, Any]:
    """Return the body of a document of a kind; `path` is for errors.

    Raises `CorruptFileError` where the bytes are not those of a document, or of another kind, and
    `FormatVersionError` where the version is newer than `supported`.
    """
    try:
        document = json.loads(data)
        found, version, body = document["kind"], document["version"], document["body"]
        intact = encode_document(found, version, body) == data
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptFileError(path, f"it is not one of keyedstate's documents ({error})") from error
    if not intact:
        raise CorruptFileError(path, "its content does not have the checksum that it carries")
    if found != kind:
        raise CorruptFileError(path, f"it is of the kind {found!r} and should be of the kind {kind!r}")
    if version > supported:
        raise FormatVersionError(path, version, supported)
    if not isinstance(body, dict):
        raise CorruptFileError(path, "its body is not an object")
    return body


def decode_as(made: type[T], path: str, kind: str, supported: int, data: bytes) -> T:
    """Return the data class that the body of a document describes; raises as `decode_document`."""
    body = decode_document(path, kind, supported, data)
    try:
        return from_json(made, body)
    except IncompleteEpochError as error:
        raise CorruptFileError(path, error.details) from error
    except (KeyError, TypeError, ValueError, KeyedStateError) as error:
        raise CorruptFileError(path, f"its content is malformed ({error})") from error


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
