"""CSV and JSON files that pyarrow's datasets do not read right."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import Any

import pyarrow as pa

_CHUNK = 1 << 20


def readable(fragment: Any) -> Any:
    """Return a fragment of a dataset whose rows are those of its file; None for a file without rows.

    A dataset refuses empty CSV and JSON files, which writers leave that had no rows. It gives a row of nulls
    for a JSON file that is one line without a final newline, also where newlines are before it: such a file
    is read here, and the newline added. Any other fragment is returned as it is.
    """
    kind = fragment.format.default_extname
    if kind not in ("csv", "json"):
        return fragment
    content, has_begun = b"", False
    with fragment.filesystem.open_input_stream(fragment.path, compression="detect") as file:
        # Most files have a newline behind their first line in the first part: no other part is read.
        while part := file.read(_CHUNK):
            if not content:
                part = part.removeprefix(BOM_UTF8)
            if b"\n" in (part if has_begun else part.lstrip()):
                return fragment
            has_begun = has_begun or bool(part.strip())
            content += part
            if has_begun and kind == "csv":
                return fragment
    if not has_begun:
        return None
    whole = pa.BufferReader(content + b"\n")
    return fragment.format.make_fragment(whole, partition_expression=fragment.partition_expression)
