"""Write what of the documentation follows from the source: hooks, options, behaviours, commands, names.

`python scripts/generate_docs.py` writes them; a test compares what is committed with what this makes.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from keyedstate import hooks
from keyedstate.cli.app import app
from keyedstate.config import ENVIRONMENT_PREFIX, SPARK_PREFIX, ConfigOption
from keyedstate.options import OPTIONS, Configuration
from keyedstate.plugins import PluginRegistry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "reference"
#: What no docstring says of the numbered behaviours: which exist, and why some do not apply.
BEHAVIOURS = ROOT / "scripts" / "behaviours.toml"
_BEHAVIOUR = re.compile(r"\b([A-Z]{2,5})-(\d{2})(?:(?:\.\.| to [A-Z]{2,5}-)(\d{2}))?\b")
BUILT_IN = ("heap-cow", "nested-map", "rocksdb", "spillable")

HOOKS_HEAD = """\
# Hooks

<!-- Made by scripts/generate_docs.py out of the kernel's hooks.py: change that. -->

These are all hooks that a plugin may implement. A backend is a module named by an entry point in the group
`{group}`; the entry point's name is the backend's name. Its functions have the decorator `@hookimpl` of
`keyedstate.hooks`, may take fewer parameters than declared here (never others), and receive them by name.
Hooks run when something is created or completed, never per record.

`keyedstate_describe_backend` and the hooks `keyedstate_create_...` belong to a backend: keyedstate calls them
on the chosen one alone. It calls every other hook on **all** plugins, whether they are the chosen backend,
another one, or no backend:

| Hook | Called | For |
|---|---|---|
| `keyedstate_serializers` | in each process | types of state of your own ([types](types.md)) |
| `keyedstate_checkpoint_storage` | for every URI | file systems ([storage](../how-to/storage.md)) |
| `keyedstate_metric_reporter` | on the driver | the metrics of epochs ([metrics](metrics.md)) |
| `keyedstate_checkpoint_completed`, `..._aborted`, `..._subsumed` | on the driver | following checkpoints |

A plugin may implement only one of them. If it is no backend, its entry point belongs to the group
`{plugin_group}`:

```toml
[project.entry-points."{plugin_group}"]
my-types = "my_package.plugin"
```

or a job names its module in the option `plugins.modules`. keyedstate skips a broken plugin, and one that
`plugins.allow` and `plugins.deny` exclude. The log reports a broken one that is no backend.
`keyedstate plugins list` shows every plugin, what it provides, and why it cannot be used.

This is hook API version {newest}; {served}. How to write a backend:
[Writing a backend](../how-to/writing-a-backend.md).
"""

OPTIONS_HEAD = """\
# Options

<!-- Made by scripts/generate_docs.py out of the framework's options.py and the plugins: change those. -->

An option has four sources; the first of these takes precedence:

1. by an explicit mapping in a call: `{{"checkpoint.dir": "/data"}}`;
2. in Spark's configuration, with the prefix `{spark}`: `--conf {spark}checkpoint.dir=/data`;
3. in the environment, with the prefix `{environment}`, and dots and dashes as underscores:
   `{environment}CHECKPOINT_DIR=/data`;
4. in a TOML file, in the table `[keyedstate]`: `checkpoint.dir = "/data"`.

The error for an unknown name suggests the closest one. `keyedstate doctor` shows the values in effect and the
source of each.
"""

BEHAVIOURS_HEAD = """\
# Behaviours

<!-- Made by scripts/generate_docs.py out of the tests' docstrings and behaviours.toml: change those. -->

The project's reference of keyed-state semantics numbers its behaviours. A test of one names it in its
docstring, from which this page is generated; the test describes it.
"""

API_HEAD = """\
# {module}

<!-- Made by scripts/generate_docs.py out of the names that the module exports: change those. -->

{first}
"""

#: The modules whose names a user, or the author of a backend, may import.
PUBLIC_MODULES = (
    "keyedstate",
    "keyedstate.runtime",
    "keyedstate.state",
    "keyedstate.types",
    "keyedstate.aggregates",
    "keyedstate.windows",
    "keyedstate.ranking",
    "keyedstate.joins",
    "keyedstate.savepoints",
    "keyedstate.sinks",
    "keyedstate.local",
    "keyedstate.testing",
    "keyedstate.backend",
    "keyedstate.tables",
    "keyedstate.ordered",
    "keyedstate.memory",
    "keyedstate.errors",
)

#: Where the part of command-line.md begins that is made here.
COMMANDS_MARK = "<!-- From here on made by scripts/generate_docs.py out of the commands: change those. -->\n"

#: The tables of `BEHAVIOURS`, and the sections that they become.
SECTIONS = {
    "other_form": ("Behaviours that differ from Flink's", "Difference"),
    "not_applicable": ("Behaviours that do not apply", "Reason"),
    "later": ("Behaviours of planned parts", "Part"),
}


def hooks_page() -> str:
    """Return docs/reference/hooks.md."""
    oldest, newest = hooks.HOOK_API
    served = f"plugins for {oldest} to {newest} are accepted" if oldest < newest else "there is no other"
    parts = [
        HOOKS_HEAD.format(
            group=hooks.ENTRY_POINT_GROUP, plugin_group=hooks.PLUGIN_GROUP, newest=newest, served=served
        )
    ]
    for node in ast.parse(inspect.getsource(hooks)).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("keyedstate_"):
            text = re.sub(r"``([^`]+)``", r"`\1`", ast.get_docstring(node) or "")
            returns = ast.unparse(node.returns) if node.returns is not None else "None"
            signature = f"def {node.name}({ast.unparse(node.args)}) -> {returns}: ..."
            parts.append(f"## {node.name}\n\n```python\n{signature}\n```\n\n{text}\n")
    return "\n".join(parts)


def options_page() -> str:
    """Return docs/reference/options.md; the plugins of this repository must be installed."""
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
    if isinstance(option.default, tuple):
        return f"`{','.join(f'{name}={value}' for name, value in option.default)}`"
    return f"`{option.default}`"


def behaviours_page() -> str:
    """Return docs/reference/behaviours.md."""
    held = held_behaviours()
    lines = [BEHAVIOURS_HEAD, f"{len(held)} behaviours.\n", "| Behaviour | Tests in |", "|---|---|"]
    lines += [f"| {name} | {', '.join(sorted(held[name]))} |" for name in sorted(held, key=_order)]
    table = behaviours_table()
    for section, (title, column) in SECTIONS.items():
        rows = [f"| {row['ids']} | {row['text']} |" for row in table.get(section, ())]
        if rows:
            lines += [f"\n## {title}\n", f"| Behaviours | {column} |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def behaviours_table() -> dict[str, Any]:
    """Return scripts/behaviours.toml."""
    return tomllib.loads(BEHAVIOURS.read_text(encoding="utf-8"))


def known_behaviours() -> set[str]:
    """Return every behaviour of the reference that belongs to a part which is built."""
    families = behaviours_table()["families"].items()
    return {
        name
        for family, numbers in families
        for part in numbers.split(", ")
        for name in behaviours_in(f"{family}-{part}")
    }


def explained_behaviours(section: str) -> set[str]:
    """Return the behaviours that one of `SECTIONS` names."""
    return {name for row in behaviours_table().get(section, ()) for name in behaviours_in(row["ids"])}


def held_behaviours() -> dict[str, set[str]]:
    """Return the behaviours that docstrings of tests name, each with the files that do."""
    held: dict[str, set[str]] = {}
    for folder in ("tests", "framework/src/keyedstate/testing"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    for behaviour in behaviours_in(ast.get_docstring(node) or ""):
                        held.setdefault(behaviour, set()).add(f"`{path.relative_to(ROOT).as_posix()}`")
    return held


def behaviours_in(text: str) -> list[str]:
    """Return the behaviours that a text names; ``COW-01..03`` and ``MIG-07 to MIG-10`` are ranges."""
    names: list[str] = []
    for letters, first, last in _BEHAVIOUR.findall(text):
        numbers = range(int(first), int(last or first) + 1)
        names += [f"{letters}-{number:02}" for number in numbers]
    return list(dict.fromkeys(names))


def _order(behaviour: str) -> tuple[str, int]:
    letters, number = behaviour.split("-")
    return letters, int(number)


def command_line_page() -> str:
    """Return docs/reference/command-line.md: the hand-written part, then every command with its options."""
    written = (DOCS / "command-line.md").read_text(encoding="utf-8").partition(COMMANDS_MARK)[0]
    return "\n".join([written + COMMANDS_MARK, *commands(app, "keyedstate")])


def commands(group: typer.Typer, name: str) -> Iterator[str]:
    """Yield a section for every command of a group and of those below it."""
    for command in group.registered_commands:
        yield from _command(command.callback, f"{name} {command.name}")
    for below in group.registered_groups:
        if below.typer_instance is not None:
            yield from commands(below.typer_instance, f"{name} {below.name}")


def _command(function: Any, name: str) -> Iterator[str]:
    words, rows = [name], []
    for parameter, hint in get_type_hints(function, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            optional = (
                inspect.signature(function).parameters[parameter].default is not inspect.Parameter.empty
            )
            spelled = _spelled(parameter, hint.__origin__, info)
            rows.append(f"| `{spelled}` | {(info.help or '').replace('<', chr(92) + '<')} |")
            if isinstance(info, ArgumentInfo):
                words.append(f"[{spelled}]" if optional else spelled)
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(function.__doc__ or ""))
    yield f"### {name}\n\n```text\n{' '.join([*words, '[OPTIONS]'] if rows else words)}\n```\n\n{text}\n"
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows]) + "\n"


def _spelled(parameter: str, kind: Any, info: ArgumentInfo | OptionInfo) -> str:
    if isinstance(info, ArgumentInfo):
        return info.metavar or parameter.upper()
    # typer takes the first name for the default where one is not given.
    names = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
    name = ", ".join(names) or f"--{parameter}"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"{name} {'/'.join(choice.value for choice in kind)}"
    return name if kind is bool else f"{name} {info.metavar or parameter.upper()}"


def api_page(module: str) -> str:
    """Return the page of a public module: a directive for each name, which the site replaces by its text."""
    names = importlib.import_module(module)
    first = inspect.cleandoc(names.__doc__ or "").partition("\n\n")[0].replace("``", "`")
    parts = [API_HEAD.format(module=module, first=first)]
    parts += [
        f"::: {module}.{name}\n"
        for name in sorted(names.__all__, key=str.casefold)
        # The modules in the facade have pages of their own.
        if not inspect.ismodule(getattr(names, name))
    ]
    return "\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {
    **{f"api/{module}.md": partial(api_page, module) for module in PUBLIC_MODULES},
    "hooks.md": hooks_page,
    "options.md": options_page,
    "behaviours.md": behaviours_page,
    "command-line.md": command_line_page,
}


def main() -> int:
    """Write every page."""
    for name, page in PAGES.items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(page(), encoding="utf-8")
        print(f"docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
