"""Lets tox find the interpreters that pyenv and uv keep but have not put on the PATH."""

from __future__ import annotations

import os
from pathlib import Path

from tox.config.sets import ConfigSet
from tox.plugin import impl
from tox.session.state import State


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    """Append the folders of those interpreters to the PATH, behind everything the user has put there."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    uv = Path("~/.local/share/uv/python").expanduser()
    found = [*sorted(pyenv.glob("versions/3.*/bin")), *sorted(uv.glob("cpython-3.*/bin"))]
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, found)])
