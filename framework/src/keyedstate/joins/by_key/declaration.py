"""How users declare joins by key: ``join("left", ttl=Ttl.of("1 day"))``."""

from __future__ import annotations

from keyedstate.errors import InvalidJoinError
from keyedstate.joins.by_key.changing import ChangingJoinFunction
from keyedstate.joins.by_key.key_join import KeyJoinFunction
from keyedstate.joins.by_key.multiway import MultiwayJoinFunction
from keyedstate.joins.by_key.regular import RegularJoinFunction
from keyedstate.joins.columns import JoinType
from keyedstate.joins.join_function import declared_side_outputs
from keyedstate.runtime.event_time import DROP, FAIL
from keyedstate.runtime.functions.builder import missing_policy
from keyedstate.state import Ttl, TtlClock


def checked_ttl(ttl: Ttl | None) -> Ttl | None:
    """Return the time to live of the rows of a join; raises `InvalidJoinError`."""
    if ttl is None:
        return None
    if not isinstance(ttl, Ttl):
        raise InvalidJoinError(f"ttl={ttl!r}", "it is no time to live", "Give ttl=Ttl.of('1 day').")
    if ttl != Ttl(ttl.ms, clock=ttl.clock):
        raise InvalidJoinError(
            f"the time to live of {ttl}",
            "a timer removes each row of a join, and its life begins once",
            "Give a duration and a clock alone, as in Ttl.of('1 day', clock=TtlClock.EVENT_TIME).",
        )
    return ttl


def join(
    how: str = "inner",
    *,
    ttl: Ttl | None = None,
    late: str = "drop",
    missing: str = "fail",
    row_kind: str | None = None,
) -> KeyJoinFunction:
    """Declare a join by key without Spark; the result is a function of two inputs, for a test harness.

    Parameters
    ----------
    how : {"inner", "left", "right", "full", "semi", "anti"}, optional
    ttl : Ttl, optional
        How long a row lives: after its event time by the watermark, or by the clock after it came.  Without
        it rows live until the end of the input.
    late : {"drop", "side output"}, optional
        What happens to rows whose life in event time is over when they come.
    missing : {"fail", "drop", "side output"}, optional
        What happens to rows without an event time, if they live by the watermark.
    row_kind : str, optional
        A further output column, with row kinds: the join then emits how its result changes, and takes rows
        of inputs that have row kinds back.

    Returns
    -------
    KeyJoinFunction

    Raises
    ------
    InvalidJoinError
    """
    chosen, ttl = JoinType.of(how), checked_ttl(ttl)
    sides, policy = declared_side_outputs(late, missing)
    if sides and (ttl is None or ttl.clock is not TtlClock.EVENT_TIME):
        raise InvalidJoinError(
            f"the side output {min(sides)!r}",
            "rows that live by the clock, or for ever, are never late and need no event time",
            "Leave it out, or give a time to live with clock=TtlClock.EVENT_TIME.",
        )
    if row_kind is None:
        return RegularJoinFunction(chosen, ttl, sides, policy)
    if type(row_kind) is not str or not row_kind:
        raise InvalidJoinError(f"row_kind={row_kind!r}", "it is no name", "Name the column of row kinds.")
    return ChangingJoinFunction(chosen, ttl, sides, policy, row_kind)


def multiway_join(
    count: int, how: str, ttl: Ttl | None, late: str, missing: str, row_kind: str | None
) -> MultiwayJoinFunction:
    """Declare the join of several inputs; raises `InvalidJoinError`."""
    if how != "inner":
        raise InvalidJoinError(
            f"the {how} join of {count} inputs",
            "only an inner join has more than two",
            "Join two inputs, and connect the result with the next one.",
        )
    if row_kind is not None:
        raise InvalidJoinError(
            f"row_kind={row_kind!r}",
            "a join of more than two inputs has no row kinds",
            "Join two inputs, and connect the result with the next one.",
        )
    policy = missing_policy(missing, InvalidJoinError)
    if late != "drop" or policy not in (FAIL, DROP):
        raise InvalidJoinError(
            f"late={late!r}, missing={missing!r}",
            "a join of more than two inputs has no side outputs",
            "Give late='drop', and missing='fail' or 'drop'.",
        )
    return MultiwayJoinFunction(count, checked_ttl(ttl), policy)
