"""Every error of every distribution reads as sentences, whatever reason it is given."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from keyedstate.errors import KeyedStateError, NoCommonEpochError, UserFunctionError, did_you_mean

PACKAGES = (
    "keyedstate",
    "keyedstate_heap_cow",
    "keyedstate_nested_map",
    "keyedstate_rocksdb",
    "keyedstate_spillable",
)
#: Reasons as callers and other libraries give them.
REASONS = ("it is gone", "it is gone.", "Is it gone?", "it is gone. Put it back.", "it goes on...")
#: What no sentence has.
FAULTS = {
    "a mark after a mark": re.compile(r"[?!:;,]\.|[?!]{2}|(?<!\.)[.?!][,;:](?!\w)"),
    "two full stops": re.compile(r"(?<![./])\.\.(?![./'])"),
    "a blank before a mark": re.compile(r" [.,;:?!](?=\s|$)"),
    "a sentence that goes on after its full stop": re.compile(r"(?<!\d)[a-z)'\"][.?!] (?!keyedstate\b)[a-z]"),
    "two blanks": re.compile(r"\S  +\S"),
    "an empty bracket or quote": re.compile(r"\(\)(?![\s.,;:]|$)|''(?![\w'])|: \."),
}


def modules() -> Iterator[ModuleType]:
    for name in PACKAGES:
        package = importlib.import_module(name)
        yield package
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            # Some need what is not everywhere: a compiled part, or a newer Spark.
            with contextlib.suppress(ImportError):
                if not found.name.endswith("__main__"):
                    yield importlib.import_module(found.name)


def error_classes() -> list[type[KeyedStateError]]:
    found: set[type[KeyedStateError]] = set()
    for module in modules():
        for value in vars(module).values():
            if inspect.isclass(value) and issubclass(value, KeyedStateError):
                found.add(value)
    # Those without a text of their own are only caught; that of a user's function is the user's.
    return sorted(
        filter(has_text, found - {KeyedStateError, UserFunctionError}),
        key=lambda cls: f"{cls.__module__}.{cls.__qualname__}",
    )


def has_text(cls: type[KeyedStateError]) -> bool:
    own = vars(cls)
    made_by_hand = "__init__" in own and "__dataclass_fields__" not in own
    return made_by_hand or "message" in own or "_message" in own


def value_for(parameter: inspect.Parameter, reason: str) -> Any:
    """Return something that a caller might give."""
    name, kind = parameter.name, str(parameter.annotation)
    if "tuple[str, str]" in kind:
        return [("alpha", "beta"), ("gamma", "delta")]
    if isinstance(parameter.default, str) and parameter.default:
        return parameter.default
    if "BaseException" in kind or kind in ("Exception", "OSError"):
        return OSError(reason)
    if kind in OTHERS:
        return OTHERS[kind]
    if "dict" in kind.lower() or "Mapping" in kind:
        return {"alpha": "beta"}
    if "tuple[int, int]" in kind:
        return (1, 2)
    if any(word in kind for word in ("Sequence", "Iterable", "Collection", "tuple[", "list[", "set[")):
        return [1, 2] if "int" in kind else ["alpha", "beta"]
    if kind.startswith("bool"):
        return True
    if kind.startswith("int"):
        return 7
    if kind.startswith("float"):
        return 1.5
    if name in REASON_PARAMETERS:
        return reason
    if name == "way_out":
        return "Put it back."
    return "alpha"


#: Of types that have no name that says it.
OTHERS = {"pa.DataType": pa.int64(), "Path": Path(__file__)}
#: Parameters that hold a clause or a sentence, and no name.
REASON_PARAMETERS = {"reason", "what", "found", "details", "last", "why", "error", "problem", "purpose"}


def samples(cls: type[KeyedStateError]) -> Iterator[KeyedStateError]:
    # A class becomes a data class, with its __init__, when the first error of it is made.
    cls.__new__(cls)
    parameters = [
        parameter
        for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and parameter.name != "message"
    ]
    for reason in REASONS:
        if cls is NoCommonEpochError:
            reason = f"Of epoch 7: {reason}"
        given = {parameter.name: value_for(parameter, reason) for parameter in parameters}
        yield made(cls, given, parameters)
        optional = {p.name: None for p in parameters if "None" in str(p.annotation)}
        if optional:
            yield made(cls, given | optional, parameters)


def made(
    cls: type[KeyedStateError], given: dict[str, Any], parameters: list[inspect.Parameter]
) -> KeyedStateError:
    positional = [given[p.name] for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    named = {p.name: given[p.name] for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return cls(*positional, **named)


def faults(text: str) -> list[str]:
    found = [fault for fault, pattern in FAULTS.items() if pattern.search(text)]
    if not re.search(r"[^.](\.|\?|!|\.\.\.)$", text):
        found.append("no full stop at its end, or several")
    if not re.match(r"[\w'\"(/<\[]", text):
        found.append("a mark at its beginning")
    return found


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__qualname__)
def test_the_text_of_an_error_is_made_of_sentences(cls: type[KeyedStateError]) -> None:
    # The output of a process that is quoted is behind the first line.
    texts = [str(error).partition(":\n")[0] + "." * (":\n" in str(error)) for error in samples(cls)]
    wrong = {text: faults(text) for text in texts}
    assert {text: found for text, found in wrong.items() if found} == {}


def test_the_rules_see_the_faults_that_they_are_for() -> None:
    for text in ("Did you mean 'k'?.", "call key()..", "it has. for the key 'a'.", "it is gone", " gone."):
        assert faults(text), text
    for text in ("Did you mean 'k'?", "see ../a and '..' in it.", "set 1.5, or 2.", "call open() first."):
        assert faults(text) == [], text


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("chekpoint.dir", True),
        ("amount", False),
        ("uuid", True),
        ("userid", True),
        ("k2", False),
    ],
)
def test_only_names_that_are_near_are_suggested(name: str, near: bool) -> None:
    known = ["checkpoint.dir", "count", "uid", "user_id", "k", "kind", "parallelism"]
    assert bool(did_you_mean(name, known)) is near
