"""The chart of a comparison: ``python chart.py report.json chart.svg``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

# The same report gives the same file.
mpl.rcParams["svg.hashsalt"] = "keyedstate"


def draw(report: Path, target: Path) -> None:
    lines = json.loads(report.read_text())["lines"]
    lines = [line for line in lines if "rows_per_s" in line]
    lines.sort(key=lambda line: line["rows_per_s"])
    names = [line["name"] for line in lines]
    speeds = [line["rows_per_s"] / 1000 for line in lines]
    colors = ["#2a6f97" if name.startswith("keyedstate") else "#b0b7bd" for name in names]
    figure = Figure(figsize=(9, 0.36 * len(lines) + 1.1), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(names, speeds, color=colors)
    axes.bar_label(bars, [f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}" for speed in speeds], padding=3)
    axes.set_xlabel("1,000 rows per second: count and sum per key")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    figure.savefig(target, metadata={"Date": None})


draw(Path(sys.argv[1]), Path(sys.argv[2]))
