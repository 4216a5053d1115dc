"""When restored entries expire that had no time to live before."""

from __future__ import annotations

from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import ManualClock, Ttl


def test_restored_entries_of_a_task_without_times_expire_in_processing_time(instances, kind):
    """Of two tasks one has used the state since it got a time to live; then one task gets both parts."""
    clock = ManualClock(500)
    halves = KeyGroupRange(0, 4), KeyGroupRange(5, 9)
    segments, keys = [], []
    for groups, ttl in zip(halves, (None, Ttl(100)), strict=True):
        backend = instances.open(groups=groups, clock=clock)
        keys.append(next(key for key in range(100) if backend.current.key_group_of(key) in groups))
        backend.set_current_key(keys[-1])
        kind.write(backend.get_state(kind.declare(ttl)), kind.writes[0])
        segments.append(instances.snapshot(backend))
    clock.now = 550
    backend = instances.open(segments, clock=clock)
    handle = backend.get_state(kind.declare(Ttl(100)))
    for now, living in (
        (599, [True, True]),
        (600, [True, False]),
        (649, [True, False]),
        (650, [False, False]),
    ):
        clock.now = now
        shown = []
        for key in keys:
            backend.set_current_key(key)
            shown.append(kind.read(handle) != kind.empty)
        assert shown == living, now
