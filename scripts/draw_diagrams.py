"""Draw the diagrams of the documentation as SVG: the packages of the source, sequences, and graphs.

`python scripts/draw_diagrams.py` writes all of them into docs/images; a test compares what is committed
with what this makes. The picture of the packages follows from the imports of the source. Every other one has
a text in scripts/diagrams: the first word of its first line says what it is, a ``sequence`` or a ``graph``,
and the rest is its title.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / "scripts" / "diagrams"
IMAGES = ROOT / "docs" / "images"
SOURCE = ROOT / "framework" / "src" / "keyedstate"

#: What each room is for. A room without a line here is an error.
PURPOSES = {
    "aggregates": "declared aggregates",
    "backend": "the contract of a backend",
    "checkpoint": "files, manifests, restore points",
    "cli": "the command line",
    "columns": "keyed columns, declared operators",
    "config": "the machinery of options",
    "durations": '"7 days" in milliseconds',
    "entry_points": "of installed distributions",
    "epoch": "one partition's epoch",
    "errors": "every error",
    "hooks": "the hook specifications",
    "joins": "joins of two inputs",
    "keygroups": "key groups and their ranges",
    "local": "the runner without Spark",
    "memory": "views of bytes",
    "metrics": "the metrics of an epoch",
    "murmur3": "Spark's hash of keys",
    "operator_state": "what operator state is",
    "options": "every option",
    "ordered": "a backend from a byte store",
    "plugins": "discovery and choice",
    "ranking": "the first rows in an order",
    "row_path": "steps of a row, compiled or plain",
    "runtime": "functions and their runners",
    "savepoints": "savepoints of queries",
    "sinks": "results into databases",
    "spark": "DataFrames, tasks, hosts",
    "state": "declarations, accessors, TTL",
    "tables": "what any backend builds on",
    "testing": "harness and contract kit",
    "time": "timers and watermarks",
    "types": "serializers",
    "version": "the installed version",
    "windows": "assigners, triggers, evictors",
    "working_folder": "local folders",
}
#: The files that a person reads to know what a plugin is.
KERNEL = {"hooks", "plugins", "config", "backend"}
#: Stands for every distribution under plugins/ and contrib/.
PLUGINS = "plugins/*, contrib/*"

INK, LINE, PAPER = "#222222", "#66707d", "#ffffff"
FILLS = {"": "#eef3fa", "kernel": "#fdebc8", "outside": "#e6f4e4", "copy": "#fbe3e4"}
BORDERS = {"": "#7f9cc0", "kernel": "#d39a2d", "outside": "#6fa869", "copy": "#c77b80"}
FONT = 13
LETTER = 7.0  # mean width of a letter of that size, on the safe side

#: A line behind a word ends beside it: words outside of boxes have a border of the paper's colour.
_FILE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
  font-family="Helvetica, Arial, sans-serif" font-size="13" role="img" aria-labelledby="title">
<title id="title">{title}</title>
<style>
text {{ fill: {ink}; stroke: {paper}; stroke-width: 4px; paint-order: stroke; }}
.in {{ stroke: none; }}
</style>
<defs>
<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0L8 4L0 8z" fill="{line}"/></marker>
<marker id="lost" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="9" markerHeight="9" orient="auto">
<path d="M0 0L8 8M8 0L0 8" stroke="{line}" stroke-width="1.5"/></marker>
</defs>
<rect width="{width}" height="{height}" fill="{paper}"/>
{shapes}
</svg>
"""


class Picture:
    """Shapes, and the area that they cover."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.shapes: list[str] = []
        self.width = self.height = 0.0

    def covers(self, x: float, y: float) -> None:
        """Let the picture reach at least to this point."""
        self.width, self.height = max(self.width, x), max(self.height, y)

    def text(
        self,
        x: float,
        y: float,
        lines: Sequence[str],
        anchor: str = "middle",
        bold: bool = False,
        boxed: bool = False,
    ) -> None:
        """Write lines, the first with its base line at `y`; `boxed` ones are inside a box."""
        weight = ' class="in"' if boxed else ""
        weight += ' font-weight="bold"' if bold else ""
        for number, line in enumerate(lines):
            place = f'x="{x:g}" y="{y + number * (FONT + 3):g}"'
            self.shapes.append(
                f'<text {place} text-anchor="{anchor}"{weight}>{escape(line, quote=False)}</text>'
            )
        self.covers(x, y + len(lines) * (FONT + 3))

    def box(
        self, x: float, y: float, width: float, height: float, kind: str = "", dashed: bool = False
    ) -> None:
        """Draw a rectangle; a dashed one is not filled."""
        fill = 'fill="none" stroke-dasharray="5 4"' if dashed else f'fill="{FILLS[kind]}"'
        border = LINE if dashed else BORDERS[kind]
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" {fill} '
            f'stroke="{border}"/>'
        )
        self.covers(x + width, y + height)

    def line(self, path: str, arrow: bool = True, dashed: bool = False, lost: bool = False) -> None:
        """Draw a path with an arrow head, or with a cross where it does not arrive."""
        end = ' marker-end="url(#lost)"' if lost else ' marker-end="url(#arrow)"' if arrow else ""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.shapes.append(f'<path d="{path}" fill="none" stroke="{LINE}"{dash}{end}/>')

    def svg(self) -> str:
        """Return the file."""
        width, height = round(self.width + 12), round(self.height + 12)
        return _FILE.format(
            width=width,
            height=height,
            title=escape(self.title, quote=False),
            ink=INK,
            line=LINE,
            paper=PAPER,
            shapes="\n".join(self.shapes),
        )


def _width(lines: Sequence[str], bold: bool = False) -> float:
    return max(len(line) for line in lines) * (LETTER + bold)


# -- sequences -------------------------------------------------------------------------------------


class Message(NamedTuple):
    """One arrow of a sequence; from a participant to itself where both are the same."""

    begin: int
    end: int
    arrow: str
    lines: list[str]


class Frame(NamedTuple):
    """The first line of a frame (``alt``, ``opt``, ``par``), of its other case (``else``), or its ``end``."""

    word: str
    text: str


_ARROWS = ("-->>", "--x", "->>")


def _sequence_items(lines: Sequence[str]) -> tuple[list[list[str]], list[Message | Frame]]:
    names: list[str] = []
    heads: list[list[str]] = []
    items: list[Message | Frame] = []
    for line in filter(None, map(str.strip, lines)):
        word, _, rest = line.partition(" ")
        if word == "participant":
            name, _, label = rest.partition(" as ")
            names.append(name)
            heads.append(textwrap.wrap(label, 20))
        elif word in ("alt", "opt", "par", "else", "end"):
            items.append(Frame(word, rest))
        else:
            between, _, text = line.partition(": ")
            arrow = next(mark for mark in _ARROWS if mark in between)
            begin, end = (names.index(name) for name in between.split(arrow))
            items.append(Message(begin, end, arrow, textwrap.wrap(text, 36)))
    return heads, items


def sequence(title: str, lines: Sequence[str]) -> Picture:
    """Draw who says what to whom, in the words that mermaid has for it."""
    heads, items = _sequence_items(lines)
    picture = Picture(title)
    messages = [item for item in items if isinstance(item, Message)]
    wide = [max(120.0, _width(words, bold=True) + 16) for words in heads]
    gaps = [(width + following) / 2 + 16 for width, following in zip(wide, [*wide[1:], 0.0], strict=True)]
    for begin, end, _, words in messages:
        if begin == end:
            gaps[begin] = max(gaps[begin], _width(words) + 36)
        else:
            span = range(min(begin, end), max(begin, end))
            for passed in span:
                gaps[passed] = max(gaps[passed], (_width(words) + 24) / len(span))
    centres = [90.0]
    for width in gaps[:-1]:
        centres.append(centres[-1] + width)
    right = max(
        [centres[-1] + 80.0]
        + [centres[begin] + 30 + _width(words) for begin, end, _, words in messages if begin == end]
    )
    top = 10.0
    tall = max(map(len, heads)) * (FONT + 3) + 14
    y = top + tall + 12
    frames: list[float] = []
    marks = Picture(title)
    for item in items:
        if isinstance(item, Frame):
            if item.word in ("alt", "opt", "par"):
                frames.append(y)
                marks.text(16, y + 16, [item.text], "start", bold=True)
                y += 28
            elif item.word == "else":
                marks.line(f"M10 {y + 4:g}H{right:g}", arrow=False, dashed=True)
                marks.text(16, y + 20, [item.text], "start", bold=True)
                y += 32
            else:
                first = frames.pop()
                marks.box(10, first, right - 10, y - first + 6, dashed=True)
                y += 18
            continue
        words = item.lines
        if item.begin == item.end:
            x = centres[item.begin]
            y += 14
            marks.text(x + 30, y + 4, words, "start")
            low = y + max(14, len(words) * (FONT + 3) - 6)
            marks.line(f"M{x:g} {y:g}H{x + 22:g}V{low:g}H{x + 3:g}")
            y = low + 12
        else:
            y += 14
            middle = (centres[item.begin] + centres[item.end]) / 2
            marks.text(middle, y, words)
            y += (len(words) - 1) * (FONT + 3) + 7
            side = 3 if item.end < item.begin else -3
            path = f"M{centres[item.begin]:g} {y:g}H{centres[item.end] + side:g}"
            marks.line(path, dashed=item.arrow != "->>", lost=item.arrow == "--x")
            y += 12
    for centre, width, words in zip(centres, wide, heads, strict=True):
        picture.line(f"M{centre:g} {top + tall:g}V{y:g}", arrow=False, dashed=True)
        picture.box(centre - width / 2, top, width, tall)
        picture.text(
            centre, top + 18 + (tall - 14 - len(words) * (FONT + 3)) / 2, words, bold=True, boxed=True
        )
    picture.shapes += marks.shapes
    picture.covers(max(right, marks.width), y)
    return picture


# -- graphs ----------------------------------------------------------------------------------------


class Box(NamedTuple):
    """A node: its lines, the first of which is its name, and its colour."""

    lines: list[str]
    kind: str = ""


def graph(
    title: str, rows: list[list[str]], boxes: Mapping[str, Box], edges: set[tuple[str, str]]
) -> Picture:
    """Draw boxes in rows, and arrows from each row to later ones.

    An arrow that passes rows goes through a free place of each of them. The places of a row are ordered by
    the mean of their neighbours, so that few arrows cross.
    """
    row_of = {name: number for number, row in enumerate(rows) for name in row}
    paths: dict[tuple[str, str], list[str]] = {}
    places = [list(row) for row in rows]
    for begin, end in sorted(edges):
        passed = []
        for number in range(row_of[begin] + 1, row_of[end]):
            passed.append(f"{begin}>{end}@{number}")
            places[number].append(passed[-1])
        paths[begin, end] = [begin, *passed, end]
    steps = {pair for path in paths.values() for pair in pairwise(path)}
    _order(places, steps)
    widths = {
        name: max(112.0, _width(boxes[name].lines[:1], bold=True) + 14, _width(boxes[name].lines) + 14)
        if name in boxes
        else 24.0
        for row in places
        for name in row
    }
    tall = max(len(box.lines) for box in boxes.values()) * (FONT + 3) + 14
    pitch = tall + 36
    total = max(sum(widths[name] + 24 for name in row) for row in places)
    centres = _centres(places, widths, steps, total)
    picture = Picture(title)
    for path in paths.values():
        x, y = centres[path[0]], 10 + row_of[path[0]] * pitch + tall
        drawn = f"M{x:g} {y:g}"
        for step, name in enumerate(path[1:], 1):
            goal = 10 + (row_of[path[0]] + step) * pitch
            last = step == len(path) - 1
            drawn += f"C{x:g} {y + 18:g} {centres[name]:g} {goal - 18:g} {centres[name]:g} {goal - last:g}"
            x, y = centres[name], goal
            if not last:
                y += tall
                drawn += f"V{y:g}"
        picture.line(drawn)
    for number, row in enumerate(rows):
        for name in row:
            box = boxes[name]
            x, y = centres[name], 10 + number * pitch
            height = len(box.lines) * (FONT + 3) + 14
            picture.box(x - widths[name] / 2, y, widths[name], tall, box.kind)
            first = y + 19 + (tall - height) / 2
            picture.text(x, first, box.lines[:1], bold=len(box.lines) > 1, boxed=True)
            picture.text(x, first + FONT + 3, box.lines[1:], boxed=True)
    return picture


def _order(places: list[list[str]], steps: set[tuple[str, str]]) -> None:
    for turn in range(24):
        down = turn % 2 == 0
        numbers = range(1, len(places)) if down else range(len(places) - 2, -1, -1)
        for number in numbers:
            fixed = {name: place for place, name in enumerate(places[number - 1 if down else number + 1])}
            wanted: dict[str, float] = {}
            for place, name in enumerate(places[number]):
                near = [
                    fixed[a if down else b]
                    for a, b in steps
                    if (b if down else a) == name and (a if down else b) in fixed
                ]
                wanted[name] = sum(near) / len(near) if near else float(place)
            places[number].sort(key=lambda name: (wanted[name], name))


def _centres(
    places: list[list[str]], widths: Mapping[str, float], steps: set[tuple[str, str]], total: float
) -> dict[str, float]:
    """Return the middle of each place: where its neighbours are, as far as its row has room there."""
    centres: dict[str, float] = {}
    for row in places:
        wide = sum(widths[name] + 24 for name in row)
        x = 10 + (total - wide) / 2
        for name in row:
            centres[name] = x + widths[name] / 2 + 12
            x += widths[name] + 24
    for _ in range(30):
        for row in places:
            for index, name in enumerate(row):
                near = [centres[b] for a, b in steps if a == name] + [
                    centres[a] for a, b in steps if b == name
                ]
                wish = sum(near) / len(near) if near else centres[name]
                low, high = 10 + widths[name] / 2, 10 + total - widths[name] / 2
                if index:
                    low = centres[row[index - 1]] + (widths[row[index - 1]] + widths[name]) / 2 + 24
                if index + 1 < len(row):
                    high = centres[row[index + 1]] - (widths[row[index + 1]] + widths[name]) / 2 - 24
                centres[name] = round(min(max(wish, low), max(high, low)), 1)
    return centres


def graph_of(title: str, lines: Sequence[str]) -> Picture:
    """Draw a graph from a text.

    A line ``row: a = label | b = label`` is a row of boxes, from the top; ``/`` breaks a label and
    ``(copy)`` at its end colours the box. A line ``a > b c`` has arrows.
    """
    rows: list[list[str]] = []
    boxes: dict[str, Box] = {}
    edges: set[tuple[str, str]] = set()
    for line in filter(None, map(str.strip, lines)):
        if line.startswith("row:"):
            rows.append([])
            for part in line.removeprefix("row:").split("|"):
                name, _, label = (word.strip() for word in part.partition("="))
                kind = next((kind for kind in FILLS if kind and label.endswith(f"({kind})")), "")
                label = label.removesuffix(f"({kind})")
                boxes[name] = Box([word.strip() for word in label.split("/")], kind)
                rows[-1].append(name)
        else:
            begin, _, ends = line.partition(">")
            edges |= {(begin.strip(), end) for end in ends.split()}
    return graph(title, rows, boxes, edges)


# -- rooms -----------------------------------------------------------------------------------------


@cache
def imports_of_rooms() -> dict[str, set[str]]:
    """Return the rooms that each room of the framework imports, and those that the plugins do."""
    sources = [
        (path.stem if path.parent == SOURCE else path.relative_to(SOURCE).parts[0], path)
        for path in SOURCE.rglob("*.py")
    ]
    for folder in ("plugins", "contrib"):
        sources += [(PLUGINS, path) for path in (ROOT / folder).glob("*/src/**/*.py")]
    rooms = {room for room, _ in sources} - {"__init__", PLUGINS}
    found: dict[str, set[str]] = {room: set() for room in rooms | {PLUGINS}}
    for room, path in sources:
        if room == "__init__":
            continue
        package = (
            ("keyedstate", *path.relative_to(SOURCE).parent.parts) if path.is_relative_to(SOURCE) else ()
        )
        for module in _imported(ast.parse(path.read_text(encoding="utf-8")), package):
            names = module.split(".")
            if names[0] == "keyedstate" and len(names) > 1 and names[1] in rooms - {room}:
                found[room].add(names[1])
    return found


def _imported(tree: ast.Module, package: tuple[str, ...]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def reached(imports: Mapping[str, set[str]], rooms: set[str]) -> set[str]:
    """Return these rooms and all that they import, directly or not."""
    found: set[str] = set()
    waiting = list(rooms)
    while waiting:
        room = waiting.pop()
        if room not in found:
            found.add(room)
            waiting += imports[room]
    return found


def rooms() -> Picture:
    """Draw the rooms; an arrow that others imply is left out."""
    imports = imports_of_rooms()
    edges = {
        (room, other)
        for room, others in imports.items()
        for other in others
        if other not in reached(imports, others - {other})
    }
    depth: dict[str, int] = {}
    for room in sorted(imports, key=lambda room: len(reached(imports, {room}))):
        depth[room] = 1 + max((depth[other] for other in imports[room]), default=-1)
    rows = [
        sorted(room for room in imports if depth[room] == level)
        for level in range(max(depth.values()), -1, -1)
    ]
    boxes = {PLUGINS: Box([PLUGINS, "built-in backends, a stranger's"], "outside")}
    for room in imports.keys() - {PLUGINS}:
        boxes[room] = Box([room, PURPOSES[room]], "kernel" if room in KERNEL else "")
    return graph("The packages of keyedstate, and which of them import which", rows, boxes, edges)


def pictures() -> dict[str, str]:
    """Return every picture by the name of its file."""
    drawn = {"rooms.svg": rooms().svg()}
    for path in sorted(TEXTS.glob("*.txt")):
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        kind, _, title = first.partition(" ")
        picture = sequence(title, lines) if kind == "sequence" else graph_of(title, lines)
        drawn[f"{path.stem}.svg"] = picture.svg()
    return drawn


def main() -> int:
    """Write every picture."""
    for name, picture in pictures().items():
        (IMAGES / name).write_text(picture, encoding="utf-8")
        print(f"docs/images/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
