"""Hooks: each is described and called, of the chosen plugin only, and what it returns is checked."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

from keyedstate import hooks, types
from keyedstate.backend import BackendContext, Level, StateKind, StateMeta
from keyedstate.errors import InvalidPluginError, MissingCapabilityError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.plugins import Backend

HOOKS = [name for name in vars(hooks) if name.startswith("keyedstate_")]


@pytest.fixture
def context(tmp_path: Path) -> BackendContext:
    return BackendContext(KeyGroupRange(0, 3), max_parallelism=8, options={}, local_base=tmp_path)


@pytest.fixture
def meta() -> StateMeta:
    return StateMeta("views", StateKind.VALUE, types.STRING, types.VOID, types.INT64)


def module_of(backend: Backend) -> Any:
    return sys.modules[f"{backend.name}_dist_plugin"]


def called_describe_backend(distributions, context, meta):
    distributions.add("mine-dist", "1.0", "mine")
    backend = distributions.registry(backend="mine").choose()
    assert backend.description.version == "9.9"
    assert module_of(backend).calls == ["keyedstate_describe_backend"]


def called_create_state_table(distributions, context, meta):
    distributions.add("mine-dist", "1.0", "mine")
    backend = distributions.registry(backend="mine").choose()
    table = backend.create_state_table(meta, context)
    assert type(table).__name__ == "StateTable"
    assert module_of(backend).calls[-1] == ("keyedstate_create_state_table", meta, context)


def called_create_snapshot_strategy(distributions, context, meta):
    distributions.add("mine-dist", "1.0", "mine")
    backend = distributions.registry(backend="mine").choose()
    assert type(backend.create_snapshot_strategy(context)).__name__ == "SnapshotStrategy"
    assert module_of(backend).calls[-1] == ("keyedstate_create_snapshot_strategy", context)


def called_create_restore_operation(distributions, context, meta):
    distributions.add("mine-dist", "1.0", "mine")
    backend = distributions.registry(backend="mine").choose()
    assert type(backend.create_restore_operation([], context)).__name__ == "RestoreOperation"
    assert module_of(backend).calls[-1] == ("keyedstate_create_restore_operation", [], context)


def called_create_spill_manager(distributions, context, meta):
    source = (
        "@hookimpl\ndef keyedstate_create_spill_manager(context):\n    return instance_of(SpillManager)\n"
    )
    distributions.add("mine-dist", "1.0", "mine", extra=source)
    backend = distributions.registry(backend="mine").choose()
    assert type(backend.create_spill_manager(context)).__name__ == "SpillManager"


def called_serializers(distributions, context, meta):
    source = """
from keyedstate import types

@hookimpl
def keyedstate_serializers():
    return {"mine-int": restore}

def restore(document):
    return types.INT64
"""
    distributions.add("mine-dist", "1.0", "mine", extra=source)
    document = {"type": "mine-int", "version": 1}
    distributions.registry(backend="mine").choose()
    assert types.SerializerSnapshot.from_json(document).restore_serializer() is types.INT64


def called_checkpoint_completed(distributions, context, meta):
    source = """
@hookimpl
def keyedstate_checkpoint_completed(uid, epoch, location, data_files):
    calls.append(("completed", uid, epoch, location, data_files))
"""
    distributions.add("mine-dist", "1.0", "mine", extra=source)
    facts = {"uid": "page-views", "epoch": 7, "location": "/state/page-views", "data_files": ["data/a.seg"]}
    distributions.registry().notify("keyedstate_checkpoint_completed", **facts)
    assert sys.modules["mine_dist_plugin"].calls[-1] == (
        "completed", "page-views", 7, "/state/page-views", ["data/a.seg"],
    )  # fmt: skip


def called_checkpoint_aborted(distributions, context, meta):
    source = """
@hookimpl
def keyedstate_checkpoint_aborted(uid, epoch, reason):
    calls.append(("aborted", uid, epoch, reason))
"""
    distributions.add("mine-dist", "1.0", "mine", extra=source)
    facts = {"uid": "page-views", "epoch": 7, "reason": "the storage failed"}
    distributions.registry().notify("keyedstate_checkpoint_aborted", **facts)
    assert sys.modules["mine_dist_plugin"].calls[-1] == ("aborted", "page-views", 7, "the storage failed")


def called_checkpoint_subsumed(distributions, context, meta):
    source = """
@hookimpl
def keyedstate_checkpoint_subsumed(uid, epoch):
    calls.append(("subsumed", uid, epoch))
"""
    distributions.add("mine-dist", "1.0", "mine", extra=source)
    distributions.registry().notify("keyedstate_checkpoint_subsumed", uid="page-views", epoch=5)
    assert sys.modules["mine_dist_plugin"].calls[-1] == ("subsumed", "page-views", 5)


def called_checkpoint_storage(distributions, context, meta):
    source = """
@hookimpl
def keyedstate_checkpoint_storage(uri):
    calls.append(uri)
"""
    distributions.add("mine-dist", "1.0", "mine", extra=source)
    ((provider, call),) = distributions.registry().callers("keyedstate_checkpoint_storage", [])
    assert call(uri="disk:a", options={}) == []
    assert (provider.name, sys.modules["mine_dist_plugin"].calls[-1]) == ("mine", "disk:a")


def called_metric_reporter(distributions, context, meta):
    source = """
@hookimpl
def keyedstate_metric_reporter(options):
    calls.append(options)
"""
    distributions.add("mine-dist", "1.0", "mine", extra=source)
    ((provider, call),) = distributions.registry().callers("keyedstate_metric_reporter", [])
    assert call(options={"to": "nowhere"}) == []
    assert (provider.name, sys.modules["mine_dist_plugin"].calls[-1]) == ("mine", {"to": "nowhere"})


CALLED = {hook: globals().get(hook.replace("keyedstate_", "called_", 1)) for hook in HOOKS}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_a_plugin_implements_is_called(hook, distributions, context, meta):
    """Fails for a hook that is never called, and for a new one without an example in this file."""
    example = CALLED[hook]
    assert example is not None, f"write called_{hook.removeprefix('keyedstate_')} for the new hook"
    example(distributions, context, meta)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_says_what_it_is_for_and_whether_it_is_required(hook):
    text = inspect.getdoc(getattr(hooks, hook))
    assert text is not None
    assert text.endswith(("Required.", "Optional."))


def test_only_the_chosen_backend_creates_something(distributions, context, meta):
    distributions.add("one-dist", "1.0", "one")
    distributions.add("two-dist", "1.0", "two")
    registry = distributions.registry()
    one, two = registry.choose("one"), registry.choose("two")
    before = list(module_of(one).calls)
    two.create_state_table(meta, context)
    two.create_snapshot_strategy(context)
    two.create_restore_operation([], context)
    two.create_spill_manager(context)
    assert module_of(one).calls == before


def test_a_plugin_without_spill_manager_has_none(distributions, context):
    distributions.add("mine-dist", "1.0", "mine")
    assert distributions.registry(backend="mine").choose().create_spill_manager(context) is None


@pytest.mark.parametrize(
    ("hook", "arguments", "expected"),
    [
        ("keyedstate_create_state_table", "meta, context", "StateTable"),
        ("keyedstate_create_snapshot_strategy", "context", "SnapshotStrategy"),
        ("keyedstate_create_restore_operation", "handles, context", "RestoreOperation"),
        ("keyedstate_create_spill_manager", "context", "SpillManager"),
    ],
)
def test_a_hook_that_returns_the_wrong_thing_is_named(
    hook, arguments, expected, distributions, context, meta
):
    source = f"def {hook}({arguments}):\n    return {{}}\n"
    if hook == "keyedstate_create_spill_manager":
        distributions.add("mine-dist", "1.0", "mine", extra=f"@hookimpl\n{source}")
    else:
        distributions.add("mine-dist", "1.0", "mine", replaced={hook: source})
    backend = distributions.registry(backend="mine").choose()
    values = {"meta": meta, "handles": [], "context": context}
    method = getattr(backend, hook.removeprefix("keyedstate_"))
    with pytest.raises(InvalidPluginError, match=f"its hook {hook} returned dict and not a {expected}"):
        method(*(values[name] for name in arguments.split(", ")))


def test_a_required_hook_that_returns_nothing_is_named(distributions, context, meta):
    hook = "keyedstate_create_state_table"
    distributions.add("mine-dist", "1.0", "mine", replaced={hook: f"def {hook}(meta, context): pass"})
    backend = distributions.registry(backend="mine").choose()
    with pytest.raises(InvalidPluginError, match="returned NoneType and not a StateTable"):
        backend.create_state_table(meta, context)


# -- capabilities and options ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "level"),
    [
        ("", "never"),
        ("Capability.STATE_KINDS: Level.NEVER", "never"),
        ("Capability.STATE_KINDS: Level.NOT_YET", "not yet"),
    ],
)
def test_an_unsupported_kind_of_state_is_refused_with_the_backends_that_support_it(
    distributions, claim, level
):
    distributions.add("mine-dist", "1.0", "mine", capabilities=claim)
    distributions.add("able-dist", "1.0", "able", capabilities="Capability.STATE_KINDS: Level.FULL")
    distributions.add("denied-dist", "1.0", "denied", capabilities="Capability.STATE_KINDS: Level.FULL")
    backend = distributions.registry(backend="mine", plugins__deny="denied").choose()
    with pytest.raises(MissingCapabilityError) as caught:
        backend.require(StateKind.LIST, "recent")
    assert (caught.value.state, caught.value.backend) == ("recent", "mine")
    assert (caught.value.capability, caught.value.level) == ("list state", level)
    assert "the state 'recent' needs list state" in str(caught.value)
    assert "Backends that do: able." in str(caught.value)


def test_where_no_backend_has_a_capability_the_error_says_so(distributions):
    distributions.add("mine-dist", "1.0", "mine")
    with pytest.raises(MissingCapabilityError, match="No installed backend does"):
        distributions.registry(backend="mine").choose().require(StateKind.MAP, "seen")


@pytest.mark.parametrize(("level", "kinds"), [(Level.FULL, ""), (Level.PARTIAL, "StateKind.MAP,")])
def test_a_claimed_kind_of_state_is_granted(distributions, level, kinds):
    claim = f"Capability.STATE_KINDS: Level.{level.name}"
    distributions.add("mine-dist", "1.0", "mine", capabilities=claim, state_kinds=kinds)
    distributions.registry(backend="mine").choose().require(StateKind.MAP, "seen")


def test_a_kind_that_a_partial_claim_leaves_out_is_refused(distributions):
    claim = "Capability.STATE_KINDS: Level.PARTIAL"
    distributions.add("mine-dist", "1.0", "mine", capabilities=claim, state_kinds="StateKind.MAP,")
    with pytest.raises(MissingCapabilityError, match="list state") as caught:
        distributions.registry(backend="mine").choose().require(StateKind.LIST, "seen")
    assert caught.value.level == "partial"


def test_options_of_plugins_are_known_but_not_of_unusable_ones(distributions):
    distributions.add("mine-dist", "1.0", "mine", options="integer('mine.size', 5, 'A size.', low=1),")
    distributions.add_source("broken", "1.0", "broken", "raise RuntimeError('boom')")
    options = distributions.registry().options()
    assert [option.name for option in options["mine"] or ()] == ["mine.size"]
    assert options["broken"] is None
