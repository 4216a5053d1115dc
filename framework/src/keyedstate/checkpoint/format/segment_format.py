"""The layout of a segment file, and the verification of its bytes.

::

    header   magic, format version, checksum of both                              16 bytes
    streams  one Arrow IPC stream per state and key group that has entries
    index    JSON: states, and per key group offset, length, entries, checksum
    footer   offset, length and checksum of the index, format version,
             checksum of the footer, magic                                         36 bytes

The streams are consecutive, states in the order in which they were begun and key groups ascending, so that
neighbouring key groups are read at once.  Every byte has a checksum (CRC-32, numbers little endian) or is a
constant that is compared.  The SHA-256 of the index, which `SegmentFile` carries into the manifest, covers
the whole file.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from keyedstate.checkpoint.storage.filesystem import InputFile
from keyedstate.errors import CorruptFileError, FormatVersionError
from keyedstate.keygroups import KeyGroupRange

FORMAT_VERSION = 1
#: Columns of every stream, in their order.
COLUMNS = ("namespace", "key", "value")

_HEADER_MAGIC = b"KEYEDSEG"
_FOOTER_MAGIC = b"GESDEYEK"
_HEADER = struct.Struct("<8sII")
_FOOTER = struct.Struct("<QQIII8s")
#: Where the first stream begins; a multiple of 8, as Arrow wants its buffers.
HEADER_BYTES = _HEADER.size
#: What is read from the end of a file at first: footer and index of a usual file, all of a small one.
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True)
class SegmentFile:
    """A finished segment file, as manifests reference it."""

    #: Relative to the storage that it was written to.
    path: str
    #: Size of the file.
    bytes: int
    #: SHA-256 of the index, hexadecimal; the index holds the checksum of everything else.
    digest: str
    #: The key groups that the file covers, also those without entries.
    key_groups: KeyGroupRange
    #: Entries per state.
    entries: Mapping[str, int]
    #: Bytes per state; empty where an earlier version has written the file.
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass
class StreamIndex:
    """The streams of one state in parallel lists, ascending; a key group without entries is not listed."""

    #: `StateMeta.to_json`.
    meta: dict[str, Any]
    key_groups: list[int] = field(default_factory=list)
    #: In bytes, offsets from the start of the file.
    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    #: CRC-32 of the streams.
    checksums: list[int] = field(default_factory=list)


def encode_header() -> bytes:
    """Return the first `HEADER_BYTES` bytes of a file."""
    content = _HEADER_MAGIC + struct.pack("<I", FORMAT_VERSION)
    return content + struct.pack("<I", zlib.crc32(content))


def encode_ending(offset: int, key_groups: KeyGroupRange, states: Iterable[StreamIndex]) -> tuple[bytes, str]:
    """Return index and footer of a file whose streams end at `offset`, and the digest of the index."""
    document = {
        "key_groups": [key_groups.start, key_groups.end],
        "states": [vars(state) for state in states],
    }
    index = json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")
    footer = struct.pack("<QQII", offset, len(index), zlib.crc32(index), FORMAT_VERSION)
    ending = index + footer + struct.pack("<I", zlib.crc32(footer)) + _FOOTER_MAGIC
    return ending, hashlib.sha256(index).hexdigest()


def read_index(location: str, source: InputFile, described: SegmentFile) -> dict[str, StreamIndex]:
    """Return the streams by state, after verifying everything in the file except the streams.

    Raises `CorruptFileError` where a byte is not the one that was written, or the file is not the described
    one, `FormatVersionError` where a newer keyedstate wrote it, and `StorageError`.
    """
    index = _verified_index(location, source, described)
    try:
        document = json.loads(index)
        key_groups = KeyGroupRange(*document["key_groups"])
        states = [StreamIndex(**state) for state in document["states"]]
        following = HEADER_BYTES
        for state in states:
            for offset, length in zip(state.offsets, state.lengths, strict=True):
                if offset != following:
                    raise ValueError(f"no stream covers byte {following}")
                following += length
        if following + len(index) + _FOOTER.size != described.bytes or key_groups != described.key_groups:
            raise ValueError("the streams do not fill the file")
        return {state.meta["name"]: state for state in states}
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptFileError(location, f"the index is malformed ({error})") from error


def _verified_index(location: str, source: InputFile, described: SegmentFile) -> bytes:
    def require(condition: bool, what: str) -> None:
        if not condition:
            raise CorruptFileError(location, what)

    size = source.size
    require(size >= HEADER_BYTES + _FOOTER.size, f"{size} bytes are too few for a segment file")
    tail_offset = max(0, size - _TAIL_BYTES)
    tail = source.read_at(tail_offset, size - tail_offset)
    require(len(tail) == size - tail_offset, "it ends before its size")
    footer = bytes(tail[len(tail) - _FOOTER.size :])
    index_offset, index_length, index_checksum, version, footer_checksum, magic = _FOOTER.unpack(footer)
    require(
        magic == _FOOTER_MAGIC, "its end is not that of a segment file: it was cut off, or something follows"
    )
    require(zlib.crc32(footer[:-12]) == footer_checksum, "the footer does not have its checksum")
    # Only a version that passed its checksum is believed: a flipped bit must not look like a newer format.
    if version > FORMAT_VERSION:
        raise FormatVersionError(location, version, FORMAT_VERSION)
    require(size == described.bytes, f"it has {size} bytes, and {described.bytes} were written")
    header = bytes(source.read_at(0, HEADER_BYTES)) if tail_offset else bytes(tail[:HEADER_BYTES])
    require(header == encode_header(), "the header is not that of a segment file")
    require(index_offset + index_length + _FOOTER.size == size, "the index does not end at the footer")
    if index_offset < tail_offset:
        index = bytes(source.read_at(index_offset, index_length))
    else:
        index = bytes(tail[index_offset - tail_offset : index_offset - tail_offset + index_length])
    require(zlib.crc32(index) == index_checksum, "the index does not have its checksum")
    require(
        hashlib.sha256(index).hexdigest() == described.digest, "it is another file than the one described"
    )
    return index
