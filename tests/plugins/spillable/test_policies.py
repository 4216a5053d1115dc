"""The policy that an option names: those of this distribution, a third party's, and none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spillable_simulation import options

from keyedstate.backend import BackendContext
from keyedstate.errors import DuplicateProviderError, InvalidOptionError, KeyedStateError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import Configuration
from keyedstate_spillable.adaptive import AdaptivePolicy
from keyedstate_spillable.classic import ClassicPolicy
from keyedstate_spillable.errors import InvalidPolicyError, UnknownPolicyError
from keyedstate_spillable.manager import manager_of
from keyedstate_spillable.options import MEMORY_BUDGET, OPTIONS
from keyedstate_spillable.policy import POLICY_GROUP, make_policy

THIRD_PARTY = """
from keyedstate_spillable.policy import NOTHING, Action, Decision, Move, SpillPolicy


class Everything(SpillPolicy):
    def __init__(self, options):
        self.budget = options["spillable.memory-budget"]

    def decide(self, signals):
        return Decision(Action.SPILL, signals.own_bytes, "always") if signals.own_bytes else NOTHING

    def plan(self, decision, maps):
        return [Move(one.table, one.key_group, one.memory_bytes) for one in maps if one.in_memory]


not_a_policy = dict
"""


@pytest.fixture
def provided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install entry points of a third party beside those of this distribution."""
    (tmp_path / "their_policy.py").write_text(THIRD_PARTY, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def provide(*values: str) -> None:
        for number, value in enumerate(values):
            metadata = tmp_path / f"theirs_{number}-1.0.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: theirs-{number}\nVersion: 1.0\n"
            )
            (metadata / "entry_points.txt").write_text(f"[{POLICY_GROUP}]\ntheirs = {value}\n")

    return provide


def test_the_policies_of_this_distribution_are_found_by_name():
    assert type(make_policy(options())) is AdaptivePolicy
    assert type(make_policy(options(policy="classic"))) is ClassicPolicy


def test_a_third_party_provides_a_policy_by_an_entry_point(provided: Any):
    provided("their_policy:Everything")
    made = make_policy(options(policy="theirs"))
    assert (type(made).__name__, made.budget) == ("Everything", MEMORY_BUDGET.default)  # type: ignore[attr-defined]


def test_an_unknown_policy_is_refused_with_those_that_are_installed():
    with pytest.raises(
        UnknownPolicyError, match=r"'clasic'\. Did you mean 'classic'\? Installed: adaptive, classic"
    ):
        make_policy(options(policy="clasic"))


def test_a_policy_that_two_distributions_provide_is_refused(provided: Any):
    provided("their_policy:Everything", "their_policy:not_a_policy")
    with pytest.raises(DuplicateProviderError, match="the spill policy 'theirs' is provided by"):
        make_policy(options(policy="theirs"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("missing_module:Policy", "ModuleNotFoundError: No module named 'missing_module'"),
        ("their_policy:missing", "AttributeError"),
        ("their_policy:not_a_policy", "it is a dict and no SpillPolicy"),
    ],
)
def test_a_policy_that_cannot_be_made_is_refused_with_its_entry_point(value: str, reason: str, provided: Any):
    provided(value)
    with pytest.raises(InvalidPolicyError, match=reason) as caught:
        make_policy(options(policy="theirs"))
    assert value in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1073741824", 1 << 30),
        ("1g", 1 << 30),
        ("1 GiB", 1 << 30),
        ("512mb", 512 << 20),
        ("64 B", 64),
        ("0.25", 0.25),
        (0.5, 0.5),
        (4096, 4096),
    ],
)
def test_a_budget_is_a_size_or_a_fraction(text: object, size: float):
    assert MEMORY_BUDGET.parse(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "0", "0.0", "1.0", "1.5", "5x", True, None, "nan", "1gg"])
def test_another_budget_is_refused(text: object):
    config = Configuration({"spillable.memory-budget": text})
    with pytest.raises(InvalidOptionError, match="a size such as 2g or 512 MiB, or a fraction"):
        config.plugin_options(lambda: {"spillable": OPTIONS}, "spillable")


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "missing"},
        {"memory_budget": 1 << 20},
        {"low_mark": 0.95},
        {"weight_requests": 0.9},
        {"policy": "classic", "load_end_ratio": 0.05},
    ],
)
def test_bad_options_are_refused_when_an_instance_is_opened(wrong: dict[str, Any], tmp_path: Path):
    context = BackendContext(KeyGroupRange(0, 3), 4, options(**wrong), tmp_path)
    with context.closing, pytest.raises(KeyedStateError):
        manager_of(context)


def test_an_instance_has_one_manager(tmp_path: Path):
    context = BackendContext(KeyGroupRange(0, 3), 4, options(memory_budget=0.999), tmp_path)
    with context.closing:
        assert manager_of(context) is manager_of(context)
