"""The plan of a run of chaos: what runs where, and what strikes it when; all of it follows from a seed."""

from __future__ import annotations

import random
from typing import Any

from faults.flight_log import DECLARED, WINDOWED
from faults.plans import CLUSTER, INSIDE, LOCAL, NO_OUTPUT, TWO_HOSTS, Plan

BACKENDS = ("heap-cow", "nested-map", "rocksdb", "restless")
SINKS = ("file sink", "file sink", "foreachBatch", "evaluated twice", INSIDE, INSIDE, NO_OUTPUT)
LATE_DRIVER = "late second driver"
SECOND_DRIVER = "second driver"
KILLS = ("driver", "driver's Python", "driver's Java", "executor", "worker", "host", "machine")
STOPS = ("driver", "driver's Java", "driver's Python", "executor", "worker", "host", "machine")
#: Rows of the table.
NAMES = (
    LATE_DRIVER,
    SECOND_DRIVER,
    *(f"kill {target}" for target in KILLS),
    *(f"stop {target}" for target in STOPS),
)
_OPTION = "spark.keyedstate."
#: Spans of stops in seconds: a hiccup, a collection of garbage, a machine that sleeps.
_SPANS = ((0.05, 0.5), (0.5, 4.0), (4.0, 15.0))


def plan_of(seed: int, number: int) -> Plan:
    """Return the plan of a run."""
    random_ = random.Random(f"chaos {seed}/run {number}")
    # Each third run begins with the late driver, on all masters, backends and sinks in turn.
    is_late = number % 3 == 0
    speculates = random_.random() < 0.3
    # Spark speculates on no local master, and gives no host two attempts of one task.
    master = random_.choice((CLUSTER, TWO_HOSTS) if speculates else (LOCAL, LOCAL, CLUSTER))
    sink = SINKS[random_.randrange(len(SINKS))]
    operators = [["aircraft"], ["origins", "aircraft"], DECLARED, WINDOWED]
    epochs = random_.randrange(12, 21)
    plan = Plan(
        seed=seed,
        number=number,
        master=master,
        storage=random_.choice(("local", "local", "local", "faulty")),
        sink=sink,
        # Windows take streams, and are judged by what they put out.
        operators=random_.choice(operators[:3] if sink in (INSIDE, NO_OUTPUT) else operators),
        first_flight=random_.randrange(300_000),
        flights=random_.choice((3_000, 6_000)),
        ahead=random_.choice((1 / epochs, 0.6)),
        lives=_lives(random_),
        settings={
            f"{_OPTION}checkpoint.max-deltas": str(random_.choice((0, 1, 10))),
            f"{_OPTION}host": random_.choice(("embedded", "resident")),
            f"{_OPTION}rocksdb.incremental": random_.choice(("true", "false")),
        },
        backends=BACKENDS,
        epochs=epochs,
    )
    if speculates:
        plan.settings |= {
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.quantile": "0.5",
            # Spark asks the loser to stop and kills its worker after this time; until then it continues.
            "spark.python.task.killTimeout": "5s",
        }
    events = [
        _event(random_, plan) for _ in range(random_.randrange(3) if is_late else random_.randrange(3, 7))
    ]
    if is_late:
        late = {"name": LATE_DRIVER, "epoch": random_.choice((0, 0, 0, 1, 2)), "after": _after(random_)}
        events.insert(0, late)
    plan.faults = [{"id": str(index), "by": "chaos", **event} for index, event in enumerate(events)]
    return plan


def traits(plan: Plan) -> list[str]:
    """Return what a run is counted under."""
    own = [
        f"starts with {plan.lives[0][1]}",
        plan.settings[f"{_OPTION}host"],
        plan.master,
        plan.sink,
        plan.storage,
    ]
    own.append(
        "windows"
        if plan.is_windowed
        else f"{len(plan.operators)} operators".replace("1 operators", "1 operator")
    )
    if len(set(plan.lives)) > 1:
        own.append("other parallelism and backend after restarts")
    return [*own, "speculation"] if "spark.speculation" in plan.settings else own


def _lives(random_: random.Random) -> list[tuple[int, str]]:
    """Return parallelism and backend of each start: always the same, or others each time."""
    lives = [(random_.choice((1, 2, 2, 3, 4)), random_.choice(BACKENDS)) for _ in range(12)]
    return [lives[0]] * 12 if random_.random() < 0.4 else lives


def _after(random_: random.Random) -> dict[str, Any]:
    """Return what a late driver waits for: the end of the first one, or some more of its epochs."""
    return {"epochs": random_.choice((None, None, 1, 2)), "seconds": random_.uniform(0.0, 2.0)}


def _event(random_: random.Random, plan: Plan) -> dict[str, Any]:
    """Return an event and its time: seconds after a commit, after all queries started, or just seconds."""
    moment = {
        "since": random_.choices(("commit", "query", "start"), (5, 4, 1))[0],
        "delay": random_.choice((1.0, 3.0, 3.0, 8.0)) * random_.random(),
        "pick": random_.random(),
    }
    kind = random_.choices((SECOND_DRIVER, "kill", "stop"), (3, 5, 5))[0]
    if kind == SECOND_DRIVER:
        return {"name": kind, **moment}
    absent = [] if plan.settings[f"{_OPTION}host"] == "resident" else ["host"]
    absent += ["executor"] if plan.master == LOCAL else []
    target = random_.choice([name for name in (KILLS if kind == "kill" else STOPS) if name not in absent])
    event = {"name": f"{kind} {target}", "kind": kind, "target": target, **moment}
    return {**event, "span": random_.uniform(*random_.choice(_SPANS))} if kind == "stop" else event
