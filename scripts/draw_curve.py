"""Draw the throughput of three backends over the size of the state as SVG, from measured numbers.

`python scripts/draw_curve.py` reads docs/images/spillable-curve.csv, which ``make bench-spillable
ARGS="--curve docs/images/spillable-curve.csv"`` measures, and writes the picture next to it; a test compares
what is committed with what this makes.
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
NUMBERS = IMAGES / "spillable-curve.csv"
PICTURE = IMAGES / "spillable-curve.svg"

INK, LINE = "#222222", "#c9d0d8"
COLOURS = {"heap-cow": "#d39a2d", "spillable": "#2f6fb3", "rocksdb": "#6fa869"}
WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 530, 30, 310
TITLE = "Rows per processor second over the size of the state, in budgets"


def picture() -> str:
    """Return the picture; both axes are logarithmic."""
    with NUMBERS.open(encoding="ascii", newline="") as file:
        rows = list(csv.DictReader(file))
    points = [(row["backend"], float(row["times"]), float(row["rows_per_processor_second"])) for row in rows]
    sizes = sorted({size for _, size, _ in points})
    marks = (50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000)
    least, most = min(rate for *_, rate in points), max(rate for *_, rate in points)
    low = max((mark for mark in marks if mark <= least), default=marks[0])
    high = min((mark for mark in marks if mark >= most), default=marks[-1])

    def x(size: float) -> float:
        return LEFT + (RIGHT - LEFT) * math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])

    def y(rate: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * math.log(rate / low) / math.log(high / low)

    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        f'  width="{WIDTH}" height="{HEIGHT}" font-family="Helvetica, Arial, sans-serif" font-size="13"',
        '  role="img" aria-labelledby="title">',
        f'<title id="title">{TITLE}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" fill="{INK}">rows per processor second</text>',
    ]
    for mark in marks:
        if low <= mark <= high:
            made.append(f'<path d="M{LEFT} {y(mark):.1f}H{RIGHT}" stroke="{LINE}"/>')
            made.append(
                f'<text x="{LEFT - 6}" y="{y(mark) + 4:.1f}" text-anchor="end" fill="{INK}">{mark:,}</text>'
            )
    for size in sizes:
        made.append(
            f'<text x="{x(size):.1f}" y="{BOTTOM + 18}" text-anchor="middle" fill="{INK}">{size:g}</text>'
        )
    made.append(
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 38}" text-anchor="middle" fill="{INK}">'
        "memory of the state in heap-cow, in budgets</text>"
    )
    for backend, colour in COLOURS.items():
        own = [(x(size), y(rate)) for name, size, rate in points if name == backend]
        line = " ".join(f"{left:.1f},{top:.1f}" for left, top in own)
        made.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        made += [f'<circle cx="{left:.1f}" cy="{top:.1f}" r="3.5" fill="{colour}"/>' for left, top in own]
        made.append(f'<text x="{own[-1][0] + 10:.1f}" y="{own[-1][1] + 4:.1f}" fill="{INK}">{backend}</text>')
    return "\n".join([*made, "</svg>", ""])


def main() -> int:
    """Write the picture."""
    PICTURE.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
