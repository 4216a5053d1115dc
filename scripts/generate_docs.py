"""Write the pages of the documentation that follow from the source: docs/hooks.md and docs/options.md.

`python scripts/generate_docs.py` writes them; a test compares what is committed with what this makes.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keyedstate import hooks
from keyedstate.config import ENVIRONMENT_PREFIX, OPTIONS, SPARK_PREFIX, ConfigOption, Configuration
from keyedstate.plugins import PluginRegistry

DOCS = Path(__file__).resolve().parent.parent / "docs"
BUILT_IN = ("heap-cow", "nested-map")

HOOKS_HEAD = """\
# Hooks

<!-- Made by scripts/generate_docs.py out of the kernel's hooks.py: change that. -->

Everything that a plugin can be asked for. A backend is a module named by an entry point in the group
`{group}`; the entry point's name is the backend's name. Its functions carry `@hookimpl` from
`keyedstate.hooks`, may take fewer parameters than declared here (never others), and are called by name. Only
the chosen backend's hooks are called, so no hook has to ask whether it is meant; hooks run when something is
created or completed, never per record.

This is hook API version {newest}; {served}. How to write a backend:
[writing-a-backend.md](writing-a-backend.md).
"""

OPTIONS_HEAD = """\
# Options

<!-- Made by scripts/generate_docs.py out of the kernel's config.py and the plugins: change those. -->

An option is set in one of four places; where several set it, the first of these wins:

1. by an explicit mapping in a call: `{{"checkpoint.dir": "/data"}}`;
2. in Spark's configuration, behind `{spark}`: `--conf {spark}checkpoint.dir=/data`;
3. in the environment, behind `{environment}`, with dots and dashes as underscores:
   `{environment}CHECKPOINT_DIR=/data`;
4. in a TOML file, in the table `[keyedstate]`: `checkpoint.dir = "/data"`.

A name that no option has is an error that names the closest one. `keyedstate doctor` shows which values are
in effect and where each of them comes from.
"""


def hooks_page() -> str:
    """Return docs/hooks.md."""
    oldest, newest = hooks.HOOK_API
    served = f"plugins for {oldest} to {newest} are accepted" if oldest < newest else "there is no other"
    parts = [HOOKS_HEAD.format(group=hooks.ENTRY_POINT_GROUP, newest=newest, served=served)]
    for node in ast.parse(inspect.getsource(hooks)).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("keyedstate_"):
            text = re.sub(r"``([^`]+)``", r"`\1`", ast.get_docstring(node) or "")
            returns = ast.unparse(node.returns) if node.returns is not None else "None"
            signature = f"def {node.name}({ast.unparse(node.args)}) -> {returns}: ..."
            parts.append(f"## {node.name}\n\n```python\n{signature}\n```\n\n{text}\n")
    return "\n".join(parts)


def options_page() -> str:
    """Return docs/options.md; the plugins of this repository must be installed."""
    registry = PluginRegistry(Configuration())
    parts = [OPTIONS_HEAD.format(spark=SPARK_PREFIX, environment=ENVIRONMENT_PREFIX)]
    parts.append("## keyedstate\n\n" + _table(OPTIONS))
    for name in BUILT_IN:
        options = registry.choose(name).description.options
        parts.append(f"## The backend {name}\n\n" + (_table(options) if options else "It has no options.\n"))
    return "\n".join(parts)


def _table(options: Iterable[ConfigOption[Any]]) -> str:
    lines = ["| Option | Default | Values | What it does |", "|---|---|---|---|"]
    for option in options:
        cells = [f"`{option.name}`", _default(option), option.expected, option.text]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _default(option: ConfigOption[Any]) -> str:
    if option.default is None:
        return "not set"
    if option.default == ():
        return "empty"
    return f"`{option.default}`"


PAGES = {"hooks.md": hooks_page, "options.md": options_page}


def main() -> int:
    """Write every page."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
