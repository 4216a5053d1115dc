"""How long accesses to states take, sampled (Flink's ``LatencyTrackingStateFactory``).

A sampled accessor gets a class of its own, derived from its class, in which each operation counts its calls.
Other accessors keep their class and cost nothing.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keyedstate.backend import StateMeta
from keyedstate.options import (
    METRICS_LATENCY,
    METRICS_LATENCY_HISTORY,
    METRICS_LATENCY_INTERVAL,
    METRICS_LATENCY_STATE_NAMES,
    Configuration,
)
from keyedstate.state.kinds.accessor import StateAccessor
from keyedstate.state.kinds.map_iterator import MapStateIterator

#: Public attributes of accessors that are no operations.
_NO_OPERATIONS = frozenset({"at", "name", "namespace", "set_namespace"})
#: Operations of map states that make an iterator.
_MAKING_ITERATORS = frozenset({"entries", "iterator"})
#: Operations of the iterator over a map state, and their names.
_OF_ITERATORS = {"has_next": "iterator_has_next", "__next__": "iterator_next", "remove": "iterator_remove"}


@dataclass(frozen=True)
class LatencySampling:
    """How accesses are sampled."""

    #: One of this many calls of an operation is measured, the first.
    interval: int = 100
    #: The newest samples of an operation that are kept.
    history: int = 128
    #: Whether each state has samples of its own, or all states of one kind share them.
    by_state: bool = True

    @classmethod
    def of(cls, config: Configuration) -> LatencySampling | None:
        """Return the settings of the options ``metrics.latency*``; None where sampling is off."""
        if not config[METRICS_LATENCY]:
            return None
        return cls(
            config[METRICS_LATENCY_INTERVAL],
            config[METRICS_LATENCY_HISTORY],
            config[METRICS_LATENCY_STATE_NAMES],
        )


class _Operation:
    """One operation of one state, or of the states of one kind."""

    __slots__ = ("calls", "samples")

    def __init__(self, history: int) -> None:
        #: Since the last sample was due.
        self.calls = 0
        #: Nanoseconds.
        self.samples: deque[int] = deque(maxlen=history)


class LatencyTracker:
    """Samples the accesses to the states of one keyed backend."""

    def __init__(self, sampling: LatencySampling) -> None:
        self.sampling = sampling
        self._operations: dict[str, dict[str, _Operation]] = {}
        self._classes: dict[tuple[type, str], type] = {}
        #: Whether an operation runs: the operations that it calls are not counted.
        self._inside = False

    def track(self, accessor: StateAccessor, meta: StateMeta) -> None:
        """Sample the accesses through an accessor, and through the iterators and accessors that it makes."""
        label = meta.name if self.sampling.by_state else meta.kind.value
        accessor.__class__ = self._class_of(type(accessor), label, _operations_of(type(accessor)))

    def forget(self) -> None:
        """Drop the samples so far; the same calls are measured as without it."""
        for operations in self._operations.values():
            for operation in operations.values():
                operation.samples.clear()

    def samples(self) -> dict[str, dict[str, list[int]]]:
        """Return the samples in nanoseconds, the oldest first, by state (or kind) and operation."""
        return {
            label: {
                name: list(operation.samples) for name, operation in operations.items() if operation.samples
            }
            for label, operations in self._operations.items()
        }

    def _class_of(self, base: type, label: str, operations: dict[str, str]) -> type:
        """Return a class with the same slots whose operations are sampled."""
        found = self._classes.get((base, label))
        if found is None:
            methods = {
                method: self._sampled(getattr(base, method), label, name)
                for method, name in operations.items()
            }
            found = type(base.__name__, (base,), {"__slots__": (), "__module__": base.__module__, **methods})
            self._classes[base, label] = found
        return found

    def _sampled(self, plain: Callable[..., Any], label: str, name: str) -> Callable[..., Any]:
        interval = self.sampling.interval
        operations = self._operations.setdefault(label, {})
        operation = operations.setdefault(name, _Operation(self.sampling.history))
        clock = time.perf_counter_ns

        @functools.wraps(plain)
        def sampled(accessor: Any, *args: Any, **named: Any) -> Any:
            if self._inside:
                return plain(accessor, *args, **named)
            calls = operation.calls
            operation.calls = (calls + 1) % interval
            self._inside = True
            try:
                if calls:
                    return plain(accessor, *args, **named)
                began = clock()
                result = plain(accessor, *args, **named)
                operation.samples.append(clock() - began)
                return result
            finally:
                self._inside = False

        if name not in _MAKING_ITERATORS:
            return sampled

        @functools.wraps(plain)
        def sampled_with_iterator(accessor: Any) -> Any:
            result = sampled(accessor)
            if isinstance(result, MapStateIterator) and not self._inside:
                result.__class__ = self._class_of(type(result), label, _OF_ITERATORS)
            return result

        return sampled_with_iterator


def _operations_of(base: type) -> dict[str, str]:
    return {
        name: name
        for name in dir(base)
        if not name.startswith("_") and name not in _NO_OPERATIONS and callable(getattr(base, name))
    }
