"""Simulate where the partitions of a keyed operator are kept on a large cluster, and what that costs.

Spark places the tasks of a stage without knowing of hosts. This plays it over many epochs, while executors
come and go, for three ways to deal with that: each task uses its own executor's host and restores what that
lacks ("no TCP"); its rows go to the host which keeps the partition ("TCP, none moves"); and the same with
partitions that move to executors which keep fewer ("TCP"), as keyedstate does, by the function that it uses.

Prints a table in Markdown; ``docs/explanation/cluster.md`` has one.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle

from keyedstate.spark.hosts.owners import moves

#: What a task changes of its state in an epoch, and how many deltas follow a full snapshot, at most.
CHANGED_SHARE, CHAIN = 0.01, 10
#: For how many epochs a host keeps what no task asks for: ten minutes of ten seconds each.
IDLE_EPOCHS = 60
WAYS = ("no TCP", "TCP, none moves", "TCP")


@dataclass(frozen=True)
class Scenario:
    """How the executors of a cluster come and go.

    Attributes
    ----------
    name : str
    executors : callable
        How many there are in an epoch.
    lost : mapping of int to int
        Of these, by epoch, so many are lost and replaced.
    preferred : int
        On how many executors all tasks are placed, as with a locality wait where so few hold all the input of
        a shuffle; 0 for all.
    """

    name: str
    executors: Callable[[int], int]
    lost: dict[int, int] = field(default_factory=dict)
    preferred: int = 0


@dataclass
class Cost:
    """What an epoch costs.

    Attributes
    ----------
    rows : float
        The share of rows that go over the network.
    restored : float
        Read from files, in units of the operator's full state.
    kept : float
        The largest memory of an executor, in units of its fair share.
    """

    rows: float
    restored: float
    kept: float


class Cluster:
    """The executors of an application, and which partitions their hosts keep at which version."""

    def __init__(self, way: str, partitions: int, cores: int, generator: random.Random) -> None:
        self._way = way
        self._partitions = partitions
        self._cores = cores
        self._random = generator
        self._names = iter(range(1 << 30))
        #: By executor and partition: the epoch after which it is kept so.
        self.kept: dict[int, dict[int, int]] = {}
        self._owners: list[int | None] = [None] * partitions

    def resize(self, executors: int, lost: int) -> None:
        """Lose executors, and add or remove until there are so many."""
        names = list(self.kept)
        for name in self._random.sample(names, min(len(names), max(lost, len(names) - executors))):
            del self.kept[name]
        while len(self.kept) < executors:
            self.kept[next(self._names)] = {}

    def epoch(self, number: int, preferred: int) -> Cost:
        """Run the tasks of an epoch."""
        keeps = Counter(owner for owner in self._owners if owner is not None)
        owners, hops, restored = list(self._owners), 0, 0.0
        for partition, here in self._placed(preferred):
            owner = self._owners[partition]
            host = here
            if self._way != "no TCP" and owner is not None and owner in self.kept and owner != here:
                stays = self._way != "TCP" or not moves(keeps[owner], keeps[here], partition, number)
                host = owner if stays else here
            hops += host != here
            restored += self._restored(self.kept[host].get(partition), number)
            self.kept[host][partition] = number
            owners[partition] = host
        self._owners = owners
        for kept in self.kept.values():
            for partition in [one for one, last in kept.items() if last <= number - IDLE_EPOCHS]:
                del kept[partition]
        fair = self._partitions / len(self.kept)
        return Cost(
            hops / self._partitions,
            restored / self._partitions,
            max(len(kept) for kept in self.kept.values()) / fair,
        )

    def _placed(self, preferred: int) -> Iterator[tuple[int, int]]:
        """Yield each partition and the executor of its task, as Spark's scheduler places them.

        It deals the first tasks out to executors in a random order, one to each in turn; each later one goes
        where a core becomes free.
        """
        executors = self._random.sample(list(self.kept), preferred or len(self.kept))
        free: list[tuple[float, int, int]] = []
        slots = self._cores * len(executors)
        for partition, executor in zip(range(self._partitions), cycle(executors), strict=False):
            began = 0.0
            if partition >= slots:
                began, _, executor = heapq.heappop(free)
            heapq.heappush(free, (began + self._random.lognormvariate(0.0, 0.3), partition, executor))
            yield partition, executor

    def _restored(self, kept_after: int | None, number: int) -> float:
        """Return what is read of a partition's state, of which a copy from an earlier epoch may be there."""
        if number == 0 or kept_after == number - 1:
            return 0.0
        # Chains begin in different epochs in reality; here all at once, which makes no difference on average.
        deltas = (number - 1) % CHAIN
        if kept_after is not None and number - 1 - kept_after <= deltas:
            return (number - 1 - kept_after) * CHANGED_SHARE
        return 1.0 + deltas * CHANGED_SHARE


def scenarios(executors: int, epochs: int) -> list[Scenario]:
    """Return what is simulated for a cluster of a size."""
    middle, few = epochs // 2, max(executors // 10, 2)
    return [
        Scenario("nothing happens", lambda _: executors),
        Scenario("tasks wait for the 3 executors with their input", lambda _: executors, preferred=3),
        Scenario(
            "an executor is lost every 10 epochs", lambda _: executors, dict.fromkeys(range(5, epochs, 10), 1)
        ),
        Scenario(f"{few} executors are lost at once", lambda _: executors, {middle: few}),
        Scenario(f"{few} executors become {executors}", lambda now: few if now < middle else executors),
        Scenario(f"{executors} executors become {few}", lambda now: executors if now < middle else few),
    ]


def simulate(scenario: Scenario, way: str, partitions: int, cores: int, epochs: int, seed: int) -> list[Cost]:
    """Return what each epoch costs; that of the first, in which there is no state, is left out."""
    cluster = Cluster(way, partitions, cores, random.Random(seed))
    costs = []
    for number in range(epochs):
        cluster.resize(scenario.executors(number), scenario.lost.get(number, 0))
        costs.append(cluster.epoch(number, min(scenario.preferred, scenario.executors(number))))
    return costs[1:]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--executors", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--cores", type=int, default=4, help="of each executor")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    print("| | | rows sent | restored per epoch | in the worst epoch | largest memory | at the end |")
    print("|---|---|---|---|---|---|---|")
    for scenario in scenarios(chosen.executors, chosen.epochs):
        for way in WAYS:
            costs = simulate(scenario, way, chosen.partitions, chosen.cores, chosen.epochs, chosen.seed)
            count = len(costs)
            print(
                f"| {scenario.name if way == WAYS[0] else ''} | {way} "
                f"| {sum(cost.rows for cost in costs) / count:.0%} "
                f"| {sum(cost.restored for cost in costs) / count:.2%} "
                f"| {max(cost.restored for cost in costs):.1%} "
                f"| {max(cost.kept for cost in costs):.1f} | {costs[-1].kept:.1f} |"
            )


if __name__ == "__main__":
    main()
