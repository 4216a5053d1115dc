"""The pages with windows over the flights: their results are those of plain computations, and drawn."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
GAP = dt.timedelta(hours=8)


def page(name: str, blocks: int) -> dict[str, Any]:
    """Return what the examples of a page leave behind."""
    text = (DOCS / "how-to" / "recipes" / f"{name}.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == blocks
    names: dict[str, Any] = {"__name__": name}
    exec(compile("\n".join(found), name, "exec", dont_inherit=True), names)
    return names


@pytest.fixture(scope="module")
def days() -> dict[str, Any]:
    return page("aircraft-days", 2)


@pytest.fixture(scope="module")
def top() -> dict[str, Any]:
    return page("top-delays", 2)


def check_picture(name: str, width: int, shapes: list[str]) -> None:
    picture = "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 300" font-family="sans-serif">',
            f'<rect width="{width}" height="300" fill="white"/>',
            *shapes,
            "</svg>",
            "",
        ]
    )
    path = DOCS / "images" / f"{name}.svg"
    if os.environ.get("KEYEDSTATE_DRAW"):
        path.write_text(picture, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == picture, "draw it again with KEYEDSTATE_DRAW=1"


def test_the_days_of_aircraft_are_those_of_sorted_departures(days: dict[str, Any]) -> None:
    by_aircraft: dict[str, list[tuple[dt.datetime, int]]] = defaultdict(list)
    for tailnum, delay, time in days["flights"]:
        by_aircraft[tailnum].append((time, delay))
    expected: dict[Any, list[int]] = {}
    for tailnum, departures in by_aircraft.items():
        begin = last = dt.datetime.min.replace(tzinfo=dt.timezone.utc)
        for time, delay in sorted(departures):
            if time - last > GAP:
                begin = time
            last = time
            expected.setdefault((tailnum, begin), []).append(delay)
    found = {(day.tailnum, day.window_start): day for day in days["found"]}
    assert len(found) == len(days["found"]) == len(expected) > 5000
    for key, delays in expected.items():
        day = found[key]
        assert (day.departures, day.worst) == (len(delays), max(delays))
        assert day.delay == pytest.approx(sum(delays) / len(delays))


def test_the_picture_of_the_days_is_drawn_from_them(days: dict[str, Any]) -> None:
    numbers, late = Counter[int](), Counter[int]()
    for day in days["found"]:
        departures = min(day.departures, 5)
        numbers[departures] += 1
        late[departures] += round(day.delay * day.departures)
    flights = Counter[int]()
    for day in days["found"]:
        flights[min(day.departures, 5)] += day.departures
    shapes = [
        '<text x="40" y="24" fill="#4878a8">days</text>',
        '<text x="400" y="24" fill="#d1603d">mean delay of their flights, in minutes</text>',
    ]
    delays: dict[int, float] = {departures: late[departures] / flights[departures] for departures in numbers}
    for x, color, values, shown in (
        (40, "#4878a8", numbers, "{:,}"),
        (400, "#d1603d", delays, "{:.1f}"),
    ):
        for place, departures in enumerate(sorted(numbers)):
            high = max(round(values[departures] / max(values.values()) * 180), 1)
            left = x + 60 * place
            name = f"{departures}" if departures < 5 else "5 or more"
            shapes += [
                f'<rect x="{left}" y="{250 - high}" width="40" height="{high}" fill="{color}"/>',
                f'<text x="{left}" y="{244 - high}" font-size="12">{shown.format(values[departures])}</text>',
                f'<text x="{left}" y="270" font-size="12">{name}</text>',
            ]
    shapes.append('<text x="40" y="290" font-size="12">departures of a day</text>')
    shapes.append('<text x="400" y="290" font-size="12">departures of a day</text>')
    check_picture("aircraft-days", 760, shapes)


def test_the_top_of_each_window_is_that_of_all_its_flights(top: dict[str, Any]) -> None:
    windows: dict[Any, dict[str, list[int]]] = {}
    for origin, dest, delay, time in top["flights"]:
        hour = int(time.timestamp()) // 3600
        for end in range(hour + 1, hour + 7):
            windows.setdefault((origin, end * 3_600_000), {}).setdefault(dest, []).append(delay)
    expected = {}
    for window, delays in windows.items():
        means = [(sum(late) / len(late), dest) for dest, late in delays.items() if len(late) >= 3]
        if means:
            expected[window] = [(dest, mean) for mean, dest in sorted(means, reverse=True)[:3]]
    assert top["answers"] == expected


def test_the_picture_of_the_top_is_drawn_from_it(top: dict[str, Any]) -> None:
    first = int(top["FIRST"].timestamp()) * 1000
    at_newark = {
        (until - first) // 3_600_000: answer[0]
        for (origin, until), answer in top["answers"].items()
        if origin == "EWR"
    }
    most = max(delay for _, delay in at_newark.values())
    shapes = [f'<text x="30" y="24" fill="#d1603d">mean delay, up to {most:.0f} minutes</text>']
    worst: dict[int, tuple[float, int, str]] = {}
    for hour, (dest, delay) in sorted(at_newark.items()):
        if delay > 0 and hour <= 7 * 24:
            high = max(round(delay / most * 200), 1)
            shapes.append(
                f'<rect x="{30 + 4 * hour}" y="{250 - high}" width="3" height="{high}" fill="#d1603d"/>'
            )
            # A day of New York ends at five in the morning UTC, and its last windows six hours later.
            worst[(hour - 11) // 24] = max((delay, hour, dest), worst.get((hour - 11) // 24, (0.0, 0, "")))
    for delay, hour, dest in worst.values():
        high = round(delay / most * 200)
        shapes.append(f'<text x="{30 + 4 * hour}" y="{246 - high}" font-size="10">{dest}</text>')
    for day in range(7):
        date = top["FIRST"] + dt.timedelta(days=day)
        shapes.append(f'<text x="{30 + 96 * day}" y="270" font-size="12">{date:%b} {date.day}</text>')
    check_picture("top-delays", 760, shapes)
