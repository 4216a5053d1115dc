"""Files by which the driver passes what it knows of an operator to a source, which is another process."""

from __future__ import annotations

import os
import tempfile
import uuid
from functools import lru_cache
from pathlib import Path


def new_source_file() -> str:
    """Return the path of a file, which does not exist yet, in a folder of this process."""
    return os.path.join(_folder().name, uuid.uuid4().hex)


def write_watermark(path: str, watermark: int) -> None:
    """Replace the watermark in a file."""
    new = f"{path}.new"
    Path(new).write_text(str(watermark), encoding="ascii")
    os.replace(new, path)


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="keyedstate-sources-")
