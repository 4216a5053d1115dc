"""The events of an auction house: persons, auctions and bids, as Nexmark's generator makes them.

Of 50 events one is a person, three are auctions and 46 are bids.  Half of the bids are on one hot auction,
and three quarters of them by one hot bidder; three quarters of the auctions have a hot seller.  Every 100 ids
another one is hot.  The numbers and names are those of the original generator (``GeneratorConfig`` of Apache
Beam), with two differences: an event refers to persons and auctions that exist already, and no two events
have the same time.

Event ``n`` has the time ``START_MS + n * period_ms``.  Events arrive in another order than that of their
times, by less than `disorder_ms`.  Everything follows from the seed: how events are cut into batches changes
none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pyarrow as pa

#: 2024-05-01 08:00 UTC.
START_MS = 1_714_550_400_000
#: How much later closing events are.
CLOSING_MS = 1000 * 86_400_000
PERSONS, AUCTIONS, BIDS = 1, 3, 46
EPOCH = PERSONS + AUCTIONS + BIDS
#: Events that are made, and brought into their order, at once.
BLOCK = 100 * EPOCH
FIRST_ID = 1000
CATEGORIES = range(10, 15)
#: Of ids, of which one is hot.
HOT_EVERY = 100
ACTIVE_PERSONS = 1000
ACTIVE_AUCTIONS = 100
KINDS = ("person", "auction", "bid")

_TIME = pa.timestamp("us", "UTC")
SCHEMAS = {
    "person": pa.schema(
        {
            "id": pa.int64(),
            "name": pa.string(),
            "emailAddress": pa.string(),
            "creditCard": pa.string(),
            "city": pa.string(),
            "state": pa.string(),
            "dateTime": _TIME,
            "extra": pa.string(),
        }
    ),
    "auction": pa.schema(
        {
            "id": pa.int64(),
            "itemName": pa.string(),
            "description": pa.string(),
            "initialBid": pa.int64(),
            "reserve": pa.int64(),
            "dateTime": _TIME,
            "expires": _TIME,
            "seller": pa.int64(),
            "category": pa.int64(),
            "extra": pa.string(),
        }
    ),
    "bid": pa.schema(
        {
            "auction": pa.int64(),
            "bidder": pa.int64(),
            "price": pa.int64(),
            "channel": pa.string(),
            "url": pa.string(),
            "dateTime": _TIME,
            "extra": pa.string(),
        }
    ),
}
_FIRST_NAMES = [
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
    "Walter",
]
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_CHANNELS = 10_000
#: Different texts of a kind.
_TEXTS = 1000


@dataclass(frozen=True)
class Events:
    """A stream of events.

    Attributes
    ----------
    seed : int
    period_ms : int
        Between two events.
    disorder_ms : int
        How much later than another event one may arrive that is older: less than this.
    """

    seed: int = 1
    period_ms: int = 1
    disorder_ms: int = 3000

    def batch(self, start: int, stop: int) -> dict[str, pa.Table]:
        """Return the events that arrive from one place to another, as a table for each kind."""
        parts: dict[str, list[pa.Table]] = {kind: [SCHEMAS[kind].empty_table()] for kind in KINDS}
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            first = block * BLOCK
            for kind, (places, table) in self._block(block).items():
                low, high = np.searchsorted(places, [start - first, stop - first])
                parts[kind].append(table.slice(low, high - low))
        return {kind: pa.concat_tables(tables).combine_chunks() for kind, tables in parts.items()}

    def batches(self, events: int, rows: int) -> Iterator[dict[str, pa.Table]]:
        """Yield the first events in batches of this many."""
        for start in range(0, events, rows):
            yield self.batch(start, min(start + rows, events))

    def closing(self, number: int) -> dict[str, pa.Table]:
        """Return one event of each kind, long after all others, which close their windows and no own one."""
        time = START_MS + CLOSING_MS + number
        made = self._tables(self._generator(-1 - number), np.arange(PERSONS + AUCTIONS + 1))
        closing = {}
        for kind, table in made.items():
            place = table.schema.get_field_index("dateTime")
            times = pa.array([time * 1000], _TIME)
            closing[kind] = table.slice(0, 1).set_column(place, table.schema.field(place), times)
        return closing

    def _generator(self, block: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, block + 2**32])

    @cached_property
    def _blocks(self) -> dict[int, dict[str, tuple[np.ndarray, pa.Table]]]:
        return {}

    def _block(self, block: int) -> dict[str, tuple[np.ndarray, pa.Table]]:
        """Return the places at which the events of each kind arrive in a block, and these events."""
        if block not in self._blocks:
            self._blocks.clear()
            generator = self._generator(block)
            numbers = block * BLOCK + np.arange(BLOCK)
            delays = generator.integers(0, self.disorder_ms, BLOCK)
            arrived = numbers[np.argsort(numbers * self.period_ms + delays, kind="stable")]
            places = places_of(arrived)
            made = self._tables(generator, arrived)
            self._blocks[block] = {kind: (places[kind], made[kind]) for kind in KINDS}
        return self._blocks[block]

    def _tables(self, generator: np.random.Generator, numbers: np.ndarray) -> dict[str, pa.Table]:
        """Return what the events with these numbers are."""
        of_kind = {kind: numbers[places] for kind, places in places_of(numbers).items()}
        columns = {
            "person": self._persons(generator, of_kind["person"]),
            "auction": self._auctions(generator, of_kind["auction"]),
            "bid": self._bids(generator, of_kind["bid"]),
        }
        return {kind: pa.table(made, schema=SCHEMAS[kind]) for kind, made in columns.items()}

    def _times(self, numbers: np.ndarray, later_ms: np.ndarray | int = 0) -> pa.Array:
        return pa.array((START_MS + numbers * self.period_ms + later_ms) * 1000, _TIME)

    def _persons(self, generator: np.random.Generator, numbers: np.ndarray) -> list[pa.Array]:
        count = len(numbers)
        cards = generator.integers(0, 10_000, (count, 4))
        return [
            pa.array(last_person(numbers)),
            _names().take(pa.array(generator.integers(0, len(_names()), count))),
            _texts("email").take(pa.array(generator.integers(0, _TEXTS, count))),
            pa.array([" ".join(f"{part:04}" for part in card) for card in cards.tolist()], pa.string()),
            pa.array(_CITIES).take(pa.array(generator.integers(0, len(_CITIES), count))),
            pa.array(_STATES).take(pa.array(generator.integers(0, len(_STATES), count))),
            self._times(numbers),
            _texts("person").take(pa.array(generator.integers(0, _TEXTS, count))),
        ]

    def _auctions(self, generator: np.random.Generator, numbers: np.ndarray) -> list[pa.Array]:
        count = len(numbers)
        prices = _prices(generator, count)
        # As long as it takes until as many others have begun, on average.
        longest = 2 * self.period_ms * ACTIVE_AUCTIONS * EPOCH // AUCTIONS
        hot = generator.integers(0, 4, count) > 0
        sellers = np.where(hot, _hot(last_person(numbers)), _active_person(generator, numbers))
        return [
            pa.array(last_auction(numbers)),
            _texts("item").take(pa.array(generator.integers(0, _TEXTS, count))),
            _texts("description").take(pa.array(generator.integers(0, _TEXTS, count))),
            pa.array(prices),
            pa.array(prices + _prices(generator, count)),
            self._times(numbers),
            self._times(numbers, 1 + generator.integers(0, longest, count)),
            pa.array(sellers),
            pa.array(generator.integers(CATEGORIES.start, CATEGORIES.stop, count)),
            _texts("auction").take(pa.array(generator.integers(0, _TEXTS, count))),
        ]

    def _bids(self, generator: np.random.Generator, numbers: np.ndarray) -> list[pa.Array]:
        count = len(numbers)
        last = last_auction(numbers)
        oldest = np.maximum(last - ACTIVE_AUCTIONS, FIRST_ID)
        auctions = np.where(
            generator.integers(0, 2, count) > 0, _hot(last), generator.integers(oldest, last + 1)
        )
        hot = generator.integers(0, 4, count) > 0
        persons = last_person(numbers)
        # Another one than the hot seller, as soon as there is one.
        hottest = np.minimum(_hot(persons) + 1, persons)
        bidders = np.where(hot, hottest, _active_person(generator, numbers))
        names, urls = _channels()
        channels = pa.array(
            np.where(
                generator.integers(0, 2, count) > 0,
                generator.integers(0, len(_HOT_CHANNELS), count),
                generator.integers(len(_HOT_CHANNELS), len(names), count),
            )
        )
        return [
            pa.array(auctions),
            pa.array(bidders),
            pa.array(_prices(generator, count)),
            names.take(channels),
            urls.take(channels),
            self._times(numbers),
            _texts("bid").take(pa.array(generator.integers(0, _TEXTS, count))),
        ]


def places_of(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Return the places of the events of each kind."""
    within = numbers % EPOCH
    is_person = within < PERSONS
    is_bid = within >= PERSONS + AUCTIONS
    return {
        "person": np.flatnonzero(is_person),
        "auction": np.flatnonzero(~is_person & ~is_bid),
        "bid": np.flatnonzero(is_bid),
    }


def last_person(numbers: np.ndarray) -> np.ndarray:
    """Return the id of the newest person at each event."""
    return FIRST_ID + numbers // EPOCH


def last_auction(numbers: np.ndarray) -> np.ndarray:
    """Return the id of the newest auction at each event that is no person."""
    return FIRST_ID + numbers // EPOCH * AUCTIONS + np.minimum(numbers % EPOCH, AUCTIONS) - PERSONS


def _hot(ids: np.ndarray) -> np.ndarray:
    return ids // HOT_EVERY * HOT_EVERY


def _active_person(generator: np.random.Generator, numbers: np.ndarray) -> np.ndarray:
    last = last_person(numbers)
    return generator.integers(np.maximum(last - ACTIVE_PERSONS + 1, FIRST_ID), last + 1)


def _prices(generator: np.random.Generator, count: int) -> np.ndarray:
    return np.rint(10 ** (generator.random(count) * 6) * 100).astype(np.int64)


@cache
def _names() -> pa.Array:
    return pa.array([f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES])


@cache
def _channels() -> tuple[pa.Array, pa.Array]:
    """Return names of channels, the hot ones first, and their addresses."""
    generator = np.random.default_rng(2)
    names = [*_HOT_CHANNELS, *(f"channel-{number}" for number in range(_CHANNELS))]
    urls = []
    for number in range(len(names)):
        path = "/".join(_word(generator, 5) for _ in range(3))
        channel = f"&channel_id={number * 7919}" if number % 10 else ""
        urls.append(f"https://www.nexmark.com/{path}/item.htm?query=1{channel}")
    return pa.array(names), pa.array(urls)


#: How long texts are, so that a person has 200 bytes in all, an auction 500 and a bid 100.
_LENGTHS = {"item": 20, "description": 100, "person": 100, "auction": 300, "bid": 25}


@cache
def _texts(kind: str) -> pa.Array:
    generator = np.random.default_rng(len(kind))
    if kind == "email":
        return pa.array([f"{_word(generator, 7)}@{_word(generator, 5)}.com" for _ in range(_TEXTS)])
    most = _LENGTHS[kind]
    return pa.array([_word(generator, int(generator.integers(most // 2, most + 1))) for _ in range(_TEXTS)])


def _word(generator: np.random.Generator, length: int) -> str:
    return generator.integers(97, 123, length, dtype=np.uint8).tobytes().decode()
