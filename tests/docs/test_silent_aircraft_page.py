"""The page about silent aircraft: its alerts are those of a plain computation, and its picture shows them."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keyedstate.testing import Harness
from keyedstate.time import EventTime

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "recipes" / "silent-aircraft.md"
PICTURE = PAGE.parents[2] / "images" / "silent-aircraft.svg"
WEEKS = 53
_1970 = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page's examples leave behind."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 2
    names: dict[str, Any] = {"__name__": "silent_aircraft_page"}
    exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
    return names


def ms(time: dt.datetime) -> int:
    return (time - _1970) // dt.timedelta(milliseconds=1)


def expected(page: dict[str, Any], until: int) -> set[tuple[str, int, int]]:
    """The alerts up to a watermark, by looking at all flights of each aircraft."""
    flights: dict[str, list[int]] = {}
    for tailnum, time in page["flights"]:
        flights.setdefault(tailnum, []).append(ms(time))
    found = set()
    for tailnum, times in flights.items():
        for last, following in zip(times, [*times[1:], None], strict=True):
            since = last + page["SILENCE_MS"]
            if (following is not None and following > since) or (following is None and since <= until):
                found.add((tailnum, last, since))
    return found


def test_the_alerts_are_those_of_all_gaps_between_flights(page: dict[str, Any]) -> None:
    newest = max(ms(time) for _, time in page["flights"])
    alerts = [tuple(alert) for alert in page["alerts"]]
    assert len(alerts) == len(set(alerts)) > 50
    assert set(alerts) == expected(page, newest - page["DAY_MS"] - 1)


def test_other_epochs_a_restart_on_another_backend_and_rescaling_give_the_same_alerts(
    page: dict[str, Any],
) -> None:
    settings = {
        "key": "tailnum",
        "schema": "tailnum string, time_hour timestamp",
        "output": "tailnum string, last long, since long",
        "event_time": EventTime("time_hour", delay="1 day"),
    }
    flights, alerts = page["flights"], []
    parts = [flights[first : first + 800] for first in range(0, len(flights), 800)]
    half = len(parts) // 2
    with Harness(page["SilentAircraft"](), backend="heap-cow", parallelism=2, **settings) as harness:
        for part in parts[:half]:
            alerts += harness.process_all(part) + harness.end_epoch()
        snapshot = harness.snapshot()
    with Harness(
        page["SilentAircraft"](), backend="nested-map", parallelism=3, restore=snapshot, **settings
    ) as harness:
        for part in parts[half:]:
            alerts += harness.process_all(part) + harness.end_epoch()
        alerts += harness.end_input()
    assert len(alerts) == len(set(map(tuple, alerts)))
    assert set(map(tuple, alerts)) == expected(page, 2**63 - 1)


def drawn(page: dict[str, Any]) -> str:
    """Return the picture: a bar for each week, of the aircraft that flew, and one of those found silent."""
    flew = Counter(week for week, _ in {(page["week"](flight), flight[0]) for flight in page["flights"]})
    silent = Counter(page["week"]((None, _1970 + dt.timedelta(milliseconds=a.since))) for a in page["alerts"])
    most, high, low = max(flew.values()), 170, 60
    bars = []
    for week in range(WEEKS):
        x = 50 + 13 * week
        up = round(flew[week] / most * high)
        down = round(silent[week] / max(silent.values()) * low)
        bars.append(f'<rect x="{x}" y="{200 - up}" width="10" height="{up}" fill="#4878a8"/>')
        bars.append(f'<rect x="{x}" y="202" width="10" height="{down}" fill="#d1603d"/>')
    months = [
        f'<text x="{50 + 13 * ((dt.date(2013, month, 1).timetuple().tm_yday - 1) // 7)}" y="285">'
        f"{dt.date(2013, month, 1):%b}</text>"
        for month in range(1, 13)
    ]
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 300" font-family="sans-serif">',
            '<rect width="760" height="300" fill="white"/>',
            f'<text x="50" y="20" fill="#4878a8">aircraft that flew in the week (up to {most})</text>',
            f'<text x="400" y="20" fill="#d1603d">found silent (up to {max(silent.values())})</text>',
            *bars,
            *months,
            "</svg>",
            "",
        ]
    )


def test_the_picture_is_drawn_from_the_alerts(page: dict[str, Any]) -> None:
    picture = drawn(page)
    if os.environ.get("KEYEDSTATE_DRAW"):
        PICTURE.write_text(picture, encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == picture, "draw it again with KEYEDSTATE_DRAW=1"
