"""Draw measured curves as SVG: both axes are logarithmic.

`python scripts/draw_curve.py` reads the numbers in docs/images, which ``make bench-spillable
ARGS="--curve docs/images/spillable-curve.csv"`` and ``make bench-scale ARGS="--csv docs/images/scale.csv"``
measure, and writes the pictures next to them; a test compares what is committed with what this makes.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"

INK, LINE = "#222222", "#c9d0d8"
FONT = 'font-family="Helvetica, Arial, sans-serif" font-size="13"'
#: Places of marks on an axis within a power of ten.
STEPS = (1, 2, 5)

Points = list[tuple[float, float]]


@dataclass
class Panel:
    """A chart in a rectangle of the picture.

    Attributes
    ----------
    title : str
    curves : mapping
        Points by the name of a curve.
    colours : mapping
        Of the curves, which also decide their order.
    left, right, top, bottom : float
        Of the area between the axes.
    factor : float
        What a value is divided by for its mark.
    """

    title: str
    curves: Mapping[str, Points]
    colours: Mapping[str, str]
    left: float
    right: float
    top: float
    bottom: float
    factor: float = 1
    names_curves: bool = False

    def __post_init__(self) -> None:
        points = [point for curve in self.curves.values() for point in curve]
        self.sizes = sorted({size for size, _ in points})
        values = [value for _, value in points]
        marks = [step * 10.0**power * self.factor for power in range(-4, 9) for step in STEPS]
        low = max(mark for mark in marks if mark <= min(values))
        high = min(mark for mark in marks if mark >= max(values))
        self.marks = [mark for mark in marks if low <= mark <= high]
        if len(self.marks) > 8:
            powers = [10.0**power * self.factor for power in range(-4, 9)]
            self.marks = sorted({low, high, *(mark for mark in powers if low <= mark <= high)})

    def x(self, size: float) -> float:
        share = math.log(size / self.sizes[0]) / math.log(self.sizes[-1] / self.sizes[0])
        return self.left + (self.right - self.left) * share

    def y(self, value: float) -> float:
        share = math.log(value / self.marks[0]) / math.log(self.marks[-1] / self.marks[0])
        return self.bottom - (self.bottom - self.top) * share

    def draw(self) -> Iterator[str]:
        """Make the elements of the chart."""
        yield f'<text x="{self.left}" y="{self.top - 12}" fill="{INK}">{self.title}</text>'
        for mark in self.marks:
            at = self.y(mark)
            yield f'<path d="M{self.left} {at:.1f}H{self.right}" stroke="{LINE}"/>'
            text = f"{mark / self.factor:,.10g}"
            yield f'<text x="{self.left - 6}" y="{at + 4:.1f}" text-anchor="end" fill="{INK}">{text}</text>'
        for size in self.sizes:
            yield (
                f'<text x="{self.x(size):.1f}" y="{self.bottom + 18}" text-anchor="middle" '
                f'fill="{INK}">{size:,.10g}</text>'
            )
        for name, colour in self.colours.items():
            own = [(self.x(size), self.y(value)) for size, value in self.curves.get(name, [])]
            if not own:
                continue
            line = " ".join(f"{left:.1f},{top:.1f}" for left, top in own)
            yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
            for left, top in own:
                yield f'<circle cx="{left:.1f}" cy="{top:.1f}" r="3.5" fill="{colour}"/>'
            if self.names_curves:
                left, top = own[-1]
                yield f'<text x="{left + 10:.1f}" y="{top + 4:.1f}" fill="{INK}">{name}</text>'


def svg(title: str, width: int, height: int, elements: list[str]) -> str:
    """Put elements into a picture."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        f'  width="{width}" height="{height}" {FONT}',
        '  role="img" aria-labelledby="title">',
        f'<title id="title">{title}</title>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    return "\n".join([*head, *elements, "</svg>", ""])


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of a file of numbers."""
    with (IMAGES / name).open(encoding="ascii", newline="") as file:
        return list(csv.DictReader(file))


def curves(rows: list[dict[str, str]], name: str, size: str, value: str) -> dict[str, Points]:
    """Return the curves of a column of the numbers, without what was not measured."""
    made: dict[str, Points] = {}
    for row in rows:
        if row[value] and float(row[value]) > 0:
            made.setdefault(row[name], []).append((float(row[size]), float(row[value])))
    return made


def spillable() -> str:
    """Draw the throughput of three backends over the size of the state."""
    rows = read("spillable-curve.csv")
    colours = {"heap-cow": "#d39a2d", "spillable": "#2f6fb3", "rocksdb": "#6fa869"}
    found = curves(rows, "backend", "times", "rows_per_processor_second")
    panel = Panel("rows per processor second", found, colours, 70, 530, 30, 310, names_curves=True)
    below = f'<text x="300" y="348" text-anchor="middle" fill="{INK}">'
    elements = [*panel.draw(), below + "memory of the state in heap-cow, in budgets</text>"]
    return svg("Rows per processor second over the size of the state, in budgets", 640, 360, elements)


def scale() -> str:
    """Draw what a micro-batch costs over the number of keys, with keyedstate and with Spark."""
    rows = read("scale.csv")
    colours = {
        "aggregate, heap-cow": "#2f6fb3",
        "per record, heap-cow": "#7fb2e5",
        "aggregate, rocksdb": "#3f7f3a",
        "per record, rocksdb": "#93c98c",
        "Spark groupBy, RocksDB": "#d39a2d",
        "Spark groupBy, HDFS store": "#b5483a",
    }
    panels = [
        ("seconds of a micro-batch of 100,000 rows", "batch_seconds", 1),
        ("seconds from a restart to its first result", "restart_seconds", 1),
        ("memory of the state in MB", "memory_bytes", 1e6),
        ("MB written by a micro-batch", "written_bytes", 1e6),
    ]
    elements: list[str] = []
    for number, (title, column, factor) in enumerate(panels):
        left, top = 70 + 440 * (number % 2), 40 + 260 * (number // 2)
        found = curves(rows, "lane", "keys", column)
        elements += Panel(title, found, colours, left, left + 340, top, top + 180, factor).draw()
    for number, (name, colour) in enumerate(colours.items()):
        left, top = 70 + 270 * (number // 2), 545 + 24 * (number % 2)
        elements.append(f'<path d="M{left} {top}h26" stroke="{colour}" stroke-width="2.5"/>')
        elements.append(f'<text x="{left + 34}" y="{top + 4}" fill="{INK}">{name}</text>')
    elements.append(f'<text x="450" y="518" text-anchor="middle" fill="{INK}">keys of the state</text>')
    return svg("A micro-batch of 100,000 rows over the number of keys", 900, 590, elements)


PICTURES = {"spillable-curve.svg": spillable, "scale.svg": scale}


def main() -> int:
    """Write the pictures."""
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
