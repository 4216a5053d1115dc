"""Draw what the queries of Nexmark take as SVG, and write the table of their page, from measured numbers.

`python scripts/draw_nexmark.py` reads docs/images/nexmark.csv, which ``make bench-nexmark ARGS=--docs``
measures, and writes the picture next to it and the table into docs/explanation/nexmark.md; a test compares
what is committed with what this makes.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
NUMBERS = DOCS / "images" / "nexmark.csv"
PICTURE = DOCS / "images" / "nexmark.svg"
PAGE = DOCS / "explanation" / "nexmark.md"

STATEFUL = "Spark transformWithState"
#: The lanes of the picture: each backend before the store of Spark that it is compared with.
COLOURS = {
    "keyedstate, heap-cow": "#d39a2d",
    "Spark, HDFS-backed store": "#b9c1ca",
    "keyedstate, rocksdb": "#6fa869",
    "Spark, RocksDB": "#7d8894",
}
HEADINGS = (
    *("Query", "heap-cow, rows/s", "to Spark with HDFS-backed store", "by processor time"),
    *("rocksdb, rows/s", "to Spark with RocksDB", "by processor time"),
    *("heap-cow to transformWithState", "lines, of SQL"),
)
INK, LINE = "#222222", "#c9d0d8"
WIDTH, LEFT, RIGHT, TOP = 760, 50, 690, 56
BAR, GAP = 9, 10
TITLE = "Rows per second of the queries of Nexmark"

Lane = dict[str, str]


def lanes() -> dict[str, dict[str, Lane]]:
    """Return what was measured, by query and lane."""
    found: dict[str, dict[str, Lane]] = {}
    with NUMBERS.open(encoding="ascii", newline="") as file:
        for line in csv.DictReader(file):
            found.setdefault(line["query"], {})[line["lane"]] = line
    return found


def picture() -> str:
    """Return the picture: a group of bars for each query, each as long as its rows per second."""
    measured = lanes()
    fastest = max(
        float(each[name]["rows_per_second"]) for each in measured.values() for name in COLOURS if name in each
    )
    step = 10 ** (len(str(int(fastest))) - 1)
    height = TOP + sum(sum(name in each for name in COLOURS) * BAR + GAP for each in measured.values()) + 30

    def x(rate: float) -> float:
        return LEFT + (RIGHT - LEFT) * rate / fastest

    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        f'  width="{WIDTH}" height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="12"',
        '  role="img" aria-labelledby="title">',
        f'<title id="title">{TITLE}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for place, (name, colour) in enumerate(COLOURS.items()):
        left = LEFT + place * 170
        made.append(f'<rect x="{left}" y="12" width="12" height="12" fill="{colour}"/>')
        made.append(f'<text x="{left + 18}" y="22" fill="{INK}">{name}</text>')
    for mark in range(step, int(fastest) + 1, step):
        made.append(f'<path d="M{x(mark):.1f} {TOP - 8}V{height - 26}" stroke="{LINE}"/>')
        made.append(
            f'<text x="{x(mark):.1f}" y="{height - 10}" text-anchor="middle" fill="{INK}">{mark:,}</text>'
        )
    top = TOP
    for query, each in measured.items():
        shown = [name for name in COLOURS if name in each]
        middle = top + len(shown) * BAR / 2 + 4
        made.append(f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end" fill="{INK}">{query}</text>')
        for name in shown:
            width = x(float(each[name]["rows_per_second"])) - LEFT
            made.append(
                f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR - 1}" fill="{COLOURS[name]}"/>'
            )
            top += BAR
        top += GAP
    return "\n".join([*made, "</svg>", ""])


def table() -> str:
    """Return what the page shows of the measurement: the picture and a table."""
    lines = [
        f"![{TITLE}](../images/{PICTURE.name})",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
    ]
    for query, each in lanes().items():
        cells = [query]
        for backend in ("heap-cow", "rocksdb"):
            ours = each[f"keyedstate, {backend}"]
            cells += [f"{int(ours['rows_per_second']):,}", ours["to_spark"], ours["processor_to_spark"]]
        ours = each["keyedstate, heap-cow"]
        ratio = ""
        if STATEFUL in each:
            ratio = f"{int(ours['rows_per_second']) / int(each[STATEFUL]['rows_per_second']):.1f}"
        cells += [ratio, f"{ours['code_lines']}, {ours['sql_lines']}"]
        lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
    return "\n".join(lines)


def page() -> str:
    """Return the page with the table."""
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(r"(?<=<!-- measured -->\n\n)(?s:.*)(?=\n\n<!-- end -->)", lambda _: table(), text)


def main() -> int:
    """Write the picture and the table."""
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
