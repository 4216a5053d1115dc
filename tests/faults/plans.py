"""The catalogue of faults, and the plan of a run: it follows from the seed and the number of the run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from faults.flight_log import DECLARED, WINDOWED
from faults.operators.table import TABLE, UIDS

LOCAL, CLUSTER = "local[2, 4]", "local-cluster[2,1,1024]"
#: A cluster whose two workers have two names: Spark gives no host two attempts of one task.
TWO_HOSTS = "two hosts"
EPOCHS = 6
#: A foreachBatch whose function builds the operators over each micro-batch.
INSIDE = "inside foreachBatch"
#: A sink that keeps nothing: such a run is judged by its state alone.
NO_OUTPUT = "noop"
MAX_PARALLELISM = 32
BACKENDS = ("heap-cow", "nested-map")
_UID = f"(aircraft|origins|hours|turns|changes|firsts|{'|'.join(UIDS)})"
_MAX_DELTAS = "spark.keyedstate.checkpoint.max-deltas"
_DELTA_MIN_BYTES = "spark.keyedstate.checkpoint.delta-min-bytes"
_HOST = "spark.keyedstate.host"
_HOPS = "spark.keyedstate.hosts.tcp"
_INCREMENTAL = "spark.keyedstate.rocksdb.incremental"
_ATTEMPT = r"attempts/epoch-\d+/[^/]+"


@dataclass(frozen=True)
class Step:
    """A place of the epoch protocol: which process gets there, and by what it is known.

    Attributes
    ----------
    name : str
    role : str
        ``worker``, ``driver``, ``savepoint`` for who takes one, or ``host`` for what only these do.  What
        workers do is done by hosts in a run that has these.
    step, path : str
        As `faults.injection.reached` receives them; the path is a regular expression.
    often : int
        How often a run without faults gets there at least, at parallelism 2.
    """

    name: str
    role: str
    step: str
    path: str
    often: int


CLAIM = Step("claim", "worker", "publish", f"^{_UID}/_owner$", 1)
RESTORE_POINT = Step("restore point", "worker", "list", f"^{_UID}$", 2 * EPOCHS - 2)
STARTED = Step("started marker", "worker", "publish", rf"^{_UID}/{_ATTEMPT}\.started$", 2 * EPOCHS)
#: Python does not see the reads and deletions that pyarrow makes on a local disk: they take ``faulty://``.
RESTORE = Step("restore", "worker", "read", f"^{_UID}/data/", 2 * EPOCHS - 2)
DELETION = Step("clean-up deletes", "driver", "delete", f"^{_UID}/", EPOCHS - 2)
ROWS = Step("rows", "worker", "rows", f"^{_UID}/rows$", 2 * EPOCHS)
DATA = Step("data file", "worker", "create", f"^{_UID}/data/", 2 * EPOCHS)
#: A worker writes it in the background, where the chain before is long enough: see `_with_full_snapshots`.
FULL_SNAPSHOT = Step(
    "full snapshot in the background", "worker", "create", rf"^{_UID}/data/[^/]+\.base\.seg$", 2
)
MANIFEST = Step("manifest", "worker", "publish", rf"^{_UID}/{_ATTEMPT}\.json$", 2 * EPOCHS)
ACKNOWLEDGEMENT = Step("acknowledgement", "worker", "written", rf"^{_UID}/{_ATTEMPT}\.json$", 2 * EPOCHS)
PUBLICATION = Step("publication", "driver", "publish", rf"^{_UID}/chk-\d+/_metadata$", EPOCHS)
PUBLISHED = Step("publication done", "driver", "written", rf"^{_UID}/chk-\d+/_metadata$", EPOCHS)
CLEAN_UP = Step("clean-up", "driver", "list", rf"^{_UID}/(data|chk-\d+|attempts.*)$", EPOCHS)
SINK = tuple(
    Step(name, "driver", name, "^sink$", EPOCHS)
    for name in ("before the sink", "before the sink commits", "after the sink committed")
)

#: What a host receives and sends, in its order: a plan comes once to each host.
FRAMES = tuple(
    Step(name, "host", step, f"^frames/{frame}$", often)
    for name, step, frame, often in (
        ("connected", "hears", "HELLO", 2 * EPOCHS),
        ("before the plan", "says", "NEED_PLAN", 1),
        ("imports", "hears", "IMPORTS", 1),
        ("after the plan", "hears", "PLAN", 1),
        ("before the rows", "says", "READY", 2 * EPOCHS),
        ("first rows", "hears", "SCHEMA", EPOCHS),
        ("after the rows", "hears", "END", 2 * EPOCHS),
        ("before its last word", "says", "DONE", 2 * EPOCHS),
        ("after its last word", "has said", "DONE", 2 * EPOCHS),
    )
)
#: The same of a task of another executor than the host's; Spark leaves it to chance how many there are.
HOPS = tuple(
    Step(f"a hop's {name}", "host", step, f"^hops/{frame}$", 2)
    for name, step, frame in (
        ("challenge", "hears", "challenge"),
        ("welcome", "has said", "challenge"),
        ("begin", "hears", "BEGIN"),
        ("first rows", "hears", "SCHEMA"),
        ("end of rows", "hears", "END"),
        ("last word", "says", "DONE"),
        ("end", "has said", "DONE"),
    )
)
#: A host that has to read what epochs in another executor have written.
CATCH_UP = Step("catch-up", "host", "read", f"^{_UID}/data/", 4)
#: Of who takes a savepoint, in its order.
SAVEPOINT = tuple(
    Step(name, "savepoint", step, path, 1)
    for name, step, path in (
        ("hold", "written", f"^{_UID}/holds/"),
        ("mark", "publish", "^savepoint/_unfinished$"),
        ("data file", "create", f"^savepoint/{_UID}/data/"),
        ("an operator's metadata", "publish", f"^savepoint/{_UID}/_metadata$"),
        ("publication", "publish", "^savepoint/_savepoint$"),
        ("publication done", "written", "^savepoint/_savepoint$"),
    )
)

WORKER_STEPS = (CLAIM, RESTORE_POINT, STARTED, RESTORE, ROWS, FULL_SNAPSHOT, DATA, MANIFEST, ACKNOWLEDGEMENT)
HOST_STEPS = tuple(step for step in WORKER_STEPS if step is not RESTORE)
DRIVER_STEPS = (PUBLICATION, PUBLISHED, CLEAN_UP, DELETION, *SINK)
WRITES = (CLAIM, STARTED, FULL_SNAPSHOT, DATA, MANIFEST, PUBLICATION)


@dataclass
class Plan:
    """One run.

    Attributes
    ----------
    seed, number : int
    master : str
    storage : str
        ``local`` or ``faulty``, see `faults.faulty_storage`.
    sink : str
        ``file sink`` (Spark's), ``foreachBatch``, or ``evaluated twice``: a foreachBatch that does so.  Chaos
        has `INSIDE` and `NO_OUTPUT`, too.
    operators : list of str
    first_flight, flights : int
        Which part of the year goes through.
    ahead : float
        How much of it the first epoch has.  After a large one the others change little of the state, and so
        write deltas.
    lives : list of (int, str)
        Parallelism and backend of each start of the driver; the last one stands for all later ones.
    pause_after : int or None
        The driver ends in good order after so many epochs, and is started again.
    faults : list of dict
        What happens; ``name`` is its row in the table, ``by`` who makes it happen.
    settings : dict
        More of Spark's settings.
    backends : sequence of str
        Those of its lives, and of who judges it.
    epochs : int
        Files of its input, without those that end windows.
    """

    seed: int
    number: int
    master: str
    storage: str
    sink: str
    operators: list[str]
    first_flight: int
    flights: int
    ahead: float
    lives: list[tuple[int, str]]
    pause_after: int | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    backends: Sequence[str] = BACKENDS
    epochs: int = EPOCHS

    @property
    def is_windowed(self) -> bool:
        """Whether all operators are windows."""
        return self.operators == WINDOWED

    @property
    def is_out_of_order(self) -> bool:
        """Whether the rows come out of order."""
        return self.is_windowed or not TABLE.keys().isdisjoint(self.operators)

    @property
    def is_ended_by_rows(self) -> bool:
        """Whether rows come in the end that end all windows."""
        fires = any(TABLE[name].fires_at_end for name in self.operators if name in TABLE)
        return self.is_out_of_order and not fires


@dataclass(frozen=True)
class Entry:
    """A row of the catalogue: what is done, on which masters, and how a plan gets it."""

    name: str
    masters: Sequence[str]
    build: Callable[[random.Random, Plan], list[dict[str, Any]]]
    restarts: bool = False


def _at(step: Step, action: str, **details: Any) -> Callable[[random.Random, Plan], list[dict[str, Any]]]:
    def build(random_: random.Random, plan: Plan) -> list[dict[str, Any]]:
        if step in SINK and plan.sink == "file sink":
            plan.sink = "foreachBatch"
        if step in (RESTORE, DELETION):
            plan.storage = "faulty"
        if step is FULL_SNAPSHOT:
            _with_full_snapshots(plan)
        if step is RESTORE:
            # A host restores in the first epoch of a run, in which there is nothing yet.
            plan.settings[_HOST] = "embedded"
        fault = {
            "by": "injection",
            "step": step.step,
            "role": step.role,
            "path": step.path,
            "nth": random_.randrange(step.often),
            "action": action,
            **details,
        }
        if action == "tear":
            fault["bytes"] = random_.randrange(100, 4000)
        if action == "slow":
            fault["seconds"] = random_.uniform(0.2, 1.5)
        return [fault]

    return build


def _with_full_snapshots(plan: Plan) -> None:
    """Have each second epoch of the first driver write the full snapshot beside its rows."""
    plan.ahead = 0.7
    plan.operators = ["aircraft"]
    plan.lives[0] = (plan.lives[0][0], "heap-cow")
    plan.settings[_MAX_DELTAS] = "1"


def _in_hosts(
    build: Callable[[random.Random, Plan], list[dict[str, Any]]],
) -> Callable[[random.Random, Plan], list[dict[str, Any]]]:
    """Have the epochs run in hosts."""

    def build_in_hosts(random_: random.Random, plan: Plan) -> list[dict[str, Any]]:
        plan.settings[_HOST] = "resident"
        return build(random_, plan)

    return build_in_hosts


def _catching_up(random_: random.Random, plan: Plan) -> list[dict[str, Any]]:
    """Kill a host that reads deltas; without hops the executors take turns with the partitions."""
    plan.storage, plan.ahead = "faulty", 0.7
    plan.settings |= {_HOST: "resident", _HOPS: "off", _MAX_DELTAS: "10"}
    return _at(CATCH_UP, "kill", target="worker")(random_, plan)


def _watched(kind: str, **details: Any) -> Callable[[random.Random, Plan], list[dict[str, Any]]]:
    def build(random_: random.Random, plan: Plan) -> list[dict[str, Any]]:
        moment = {"epoch": random_.randrange(EPOCHS - 1), "delay": random_.uniform(0.0, 0.6)}
        return [{"by": kind, **moment, **details}]

    return build


def _savepoint(step: Step) -> Callable[[random.Random, Plan], list[dict[str, Any]]]:
    """A savepoint that is taken while the query runs, and killed at a step; the next one replaces it."""

    def build(random_: random.Random, plan: Plan) -> list[dict[str, Any]]:
        (fault,) = _at(step, "kill", target="worker")(random_, plan)
        if plan.is_windowed:
            # Who judges a savepoint counts flights in it.
            plan.operators = ["origins", "aircraft"]
        return [{**fault, "by": "savepoint", "epoch": random_.randrange(EPOCHS - 1)}]

    return build


def _stopped(step: Step) -> Callable[[random.Random, Plan], list[dict[str, Any]]]:
    """A driver that is thought dead at a step, and continues when its successor has come further."""

    def build(random_: random.Random, plan: Plan) -> list[dict[str, Any]]:
        (fault,) = _at(step, "stop")(random_, plan)
        if step in (PUBLICATION, PUBLISHED):
            # On a local disk it would hold a lock there, and no other driver could overtake it.
            plan.storage = "faulty"
            # Of two evaluations it would be unknown which one counts, once the zombie's checkpoint is in the
            # place of that of its successor: that stops the query, as the protocol says.
            plan.sink = "foreachBatch" if plan.sink == "evaluated twice" else plan.sink
        # Late enough that there is a state, early enough that a successor has epochs to do.
        fault["nth"] = random_.randrange(1, EPOCHS - 2)
        return [{**fault, "zombie_run": True}]

    return build


def _speculation(random_: random.Random, plan: Plan) -> list[dict[str, Any]]:
    """An attempt that is so slow that Spark starts another one, and continues when that one has won."""
    plan.settings |= {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.5",
        # Spark asks the loser to stop and kills its worker after this time; until then it continues.
        "spark.python.task.killTimeout": "20s",
    }
    # With one task in an epoch Spark has none to compare it with, with three no core for another attempt.
    plan.lives = [(2, backend) for _, backend in plan.lives]
    (fault,) = _at(random_.choice((ROWS, DATA, MANIFEST)), "wait")(random_, plan)
    return [fault]


def _restart(random_: random.Random, plan: Plan) -> list[dict[str, Any]]:
    plan.pause_after = random_.randrange(1, EPOCHS)
    return [{"by": "campaign"}]


def _kill_in_restore(random_: random.Random, plan: Plan) -> list[dict[str, Any]]:
    """Kill a host that restores: it does so in the first epoch of a driver's second life."""
    plan.pause_after = random_.randrange(1, EPOCHS)
    (fault,) = _at(RESTORE, "kill", target="worker")(random_, plan)
    plan.settings[_HOST] = "resident"
    return [{**fault, "nth": 0}]


def _another_backend(random_: random.Random, plan: Plan) -> list[dict[str, Any]]:
    names = itertools.cycle(plan.backends)
    plan.lives = [(parallelism, next(names)) for parallelism, _ in plan.lives]
    return _restart(random_, plan)


def _another_parallelism(random_: random.Random, plan: Plan) -> list[dict[str, Any]]:
    numbers = random_.sample((1, 2, 3, 4, 5), 5)
    plan.lives = [(numbers[n % 5], backend) for n, (_, backend) in enumerate(plan.lives)]
    return _restart(random_, plan)


def catalogue() -> list[Entry]:
    """Return every fault that a campaign goes through."""
    anywhere, entries = (LOCAL, CLUSTER), []
    for step in WORKER_STEPS:
        entries.append(
            Entry(f"kill worker: {step.name}", (LOCAL, LOCAL, CLUSTER), _at(step, "kill", target="worker"))
        )
        entries.append(Entry(f"kill executor: {step.name}", (CLUSTER,), _at(step, "kill", target="executor")))
        kill_driver = _at(step, "kill", target="driver")
        entries.append(Entry(f"kill driver: {step.name}", (LOCAL, LOCAL, CLUSTER), kill_driver, True))
    for step in DRIVER_STEPS:
        kill_driver = _at(step, "kill", target="driver")
        entries.append(Entry(f"kill driver: {step.name}", (LOCAL, LOCAL, CLUSTER), kill_driver, True))
    for step in (*HOST_STEPS, *FRAMES):
        kill_host = _in_hosts(_at(step, "kill", target="worker"))
        entries.append(Entry(f"kill host: {step.name}", (LOCAL, LOCAL, CLUSTER), kill_host))
        kill_tasks = _in_hosts(_at(step, "kill", target="tasks"))
        entries.append(Entry(f"kill tasks of a host: {step.name}", (LOCAL,), kill_tasks))
    for step in HOPS:
        kill_host = _in_hosts(_at(step, "kill", target="worker"))
        entries.append(Entry(f"kill host: {step.name}", (CLUSTER,), kill_host))
        kill_executor = _in_hosts(_at(step, "kill", target="executor"))
        entries.append(Entry(f"kill executor: {step.name}", (CLUSTER,), kill_executor))
    entries.append(Entry("kill host: catch-up", (CLUSTER,), _catching_up))
    entries.append(Entry("kill host: restore", (LOCAL,), _kill_in_restore, True))
    any_host = _in_hosts(_watched("random", target="host"))
    entries.append(Entry("kill host: any moment", anywhere, any_host))
    entries.append(Entry("kill driver: Spark's commit", (LOCAL, LOCAL, CLUSTER), _watched("commit"), True))
    entries.append(Entry("kill worker: any moment", anywhere, _watched("random", target="worker")))
    entries.append(Entry("kill executor: any moment", (CLUSTER,), _watched("random", target="executor")))
    entries.append(Entry("kill driver: any moment", anywhere, _watched("random", target="driver"), True))
    for step in WRITES:
        for name, action, details in (
            ("fails", "fail", {}),
            ("is slow", "slow", {}),
            ("no room", "full", {}),
            ("torn, then an error", "tear", {"then": "error", "target": step.role}),
            ("torn, then death", "tear", {"then": "kill", "target": step.role}),
        ):
            dies = details.get("then") == "kill" and step.role == "driver"
            entries.append(Entry(f"write {name}: {step.name}", (LOCAL,), _at(step, action, **details), dies))
    for name, step in (("read fails: restore", RESTORE), ("deletion fails: clean-up", DELETION)):
        entries.append(Entry(name, (LOCAL,), _at(step, "fail")))
    entries.append(Entry("task fails: rows", anywhere, _at(ROWS, "raise")))
    entries.append(Entry("disk full", (LOCAL,), _watched("disk full"), True))
    for step in (STARTED, DATA, MANIFEST):
        entries.append(Entry(f"zombie attempt: {step.name}", (LOCAL,), _at(step, "zombie")))
    for step in (PUBLICATION, PUBLISHED, SINK[1]):
        entries.append(Entry(f"zombie run: {step.name}", (LOCAL,), _stopped(step), True))
    for step in SAVEPOINT:
        entries.append(Entry(f"kill savepoint: {step.name}", (LOCAL,), _savepoint(step)))
    entries.append(Entry("speculation", (TWO_HOSTS,), _speculation, True))
    entries.append(Entry("two live drivers", (LOCAL,), _watched("second driver"), True))
    entries.append(Entry("restart: another parallelism", anywhere, _another_parallelism, True))
    entries.append(Entry("restart: another backend", anywhere, _another_backend, True))
    return entries


def _operators(seed: int, number: int, random_: random.Random, chosen: Sequence[str]) -> list[str]:
    own: list[str] = random_.choice((["aircraft"], ["origins", "aircraft"], WINDOWED, DECLARED))
    turn, is_own = (number, False) if chosen else divmod(number, 2)
    if is_own:
        return own
    # In it faults strike while rows are processed.
    declared = list(chosen or TABLE)
    return ["aircraft", declared[(turn + seed) % len(declared)]]


def plan_of(
    seed: int,
    number: int,
    names: Collection[str] = (),
    backends: Sequence[str] = BACKENDS,
    operators: Sequence[str] = (),
) -> Plan:
    """Return the plan of a run: the catalogue in a shuffled order, and from its start again.

    Parameters
    ----------
    seed, number : int
    names : collection of str
        The only faults to plan; empty for all.
    backends : sequence of str
    operators : sequence of str
        The only ones of the table to plan, in turns; empty for all, in each second run.
    """
    entries = [entry for entry in catalogue() if not names or entry.name in names]
    round_, place = divmod(number, len(entries))
    random.Random(f"{seed}/round {round_}").shuffle(entries)
    random_ = random.Random(f"{seed}/run {number}")
    first = entries[place]
    # Parallelism and backend may change at every start of the driver.
    lives = [(random_.choice((1, 2, 2, 3, 4)), random_.choice(backends)) for _ in range(6)]
    # The places of steps are counted for two tasks at least.
    lives[0] = (random_.choice((2, 2, 3)), lives[0][1])
    plan = Plan(
        seed=seed,
        number=number,
        master=random_.choice(first.masters),
        storage="local" if first.name == "disk full" else random_.choice(("local", "local", "faulty")),
        sink=random_.choice(("file sink", "file sink", "foreachBatch", "evaluated twice")),
        operators=_operators(seed, number, random_, operators),
        first_flight=random_.randrange(300_000),
        flights=random_.choice((3_000, 6_000, 9_000)),
        ahead=random_.choice((1 / EPOCHS, 0.7)),
        lives=lives,
        settings={
            _MAX_DELTAS: str(random_.choice((0, 1, 10))),
            _DELTA_MIN_BYTES: "0",
            _HOST: random_.choice(("embedded", "resident")),
        },
        backends=backends,
    )
    faults = [{"name": first.name, **fault} for fault in first.build(random_, plan)]
    # A second one that the same driver can live through.
    mild = [entry for entry in entries if not entry.restarts and plan.master in entry.masters]
    if mild and random_.random() < 0.5:
        second = random_.choice(mild)
        where = plan.settings[_HOST]
        built = second.build(random_, plan)
        # One that wants the epochs elsewhere than the first has to stay away.
        if plan.settings[_HOST] == where:
            faults += [{"name": second.name, **fault} for fault in built]
        plan.settings[_HOST] = where
    if plan.settings[_HOST] == "resident":
        for fault in faults:
            if fault.get("role") == "worker":
                fault["role"] = "host"
    if "rocksdb" in backends:
        plan.settings[_INCREMENTAL] = random_.choice(("true", "false"))
    plan.faults = [{"id": str(index), **fault} for index, fault in enumerate(faults)]
    return plan
