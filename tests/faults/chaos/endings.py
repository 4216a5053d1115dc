"""How a driver ended, read from its exit code and its log, and whether the epoch protocol allows that."""

from __future__ import annotations

import re
from dataclasses import dataclass

USED_UP = "used up the input"
KILLED = "killed"


@dataclass(frozen=True)
class Ending:
    """A way to end with an error.

    Attributes
    ----------
    name : str
    pattern : str
        What its log has then; the first ending that matches is taken.
    needs : str
        Event without which it is not allowed: the beginning of a name in `faults.chaos.plans.NAMES`.
        ``another driver`` stands for any that lived at the same time.
    """

    name: str
    pattern: str
    needs: str = "another driver"


#: What the protocol allows.
ALLOWED = (
    Ending("overtaken by another run", r"OvertakenRunError"),
    Ending("superseded by a newer run", r"SupersededRunError"),
    Ending(
        "Spark found another writer",
        r"CONCURRENT_STREAM_LOG_UPDATE|Concurrent update to the log|Multiple streaming queries are "
        r"concurrently|Race while writing batch|ConcurrentModificationException|FileAlreadyExistsException",
    ),
    Ending(
        "its tasks were killed",
        r"HostLostError|ExecutorLostFailure|Python worker exited unexpectedly",
        "kill",
    ),
    Ending("another process had the lock", r"another process has locked it", "stop"),
)


def classify(log: str) -> Ending | None:
    """Return how a driver with an error ended, where that is known."""
    return next((ending for ending in ALLOWED if re.search(ending.pattern, log)), None)


def last_error(log: str) -> str:
    """Return the line that names the error of a driver, as far as one is found."""
    named = re.findall(
        r"^.*\b(?:keyedstate|pyspark|java|org)\.[\w.]*(?:Error|Exception)\b.*$", log, re.MULTILINE
    )
    return named[-1].strip()[:400] if named else (log.strip().splitlines() or ["it wrote nothing"])[-1][:400]
