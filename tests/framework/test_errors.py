"""Errors of the kernel: they cross process borders whole, and their messages end with the way out."""

from __future__ import annotations

import inspect
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from keyedstate import errors
from keyedstate.errors import KeyedStateError, UnknownOptionError, kernel
from keyedstate.options import Configuration

EXAMPLES: list[KeyedStateError] = [
    errors.KeyedStateError("plain"),
    errors.ConfigError("the file is bad"),
    errors.UnknownOptionError("spark.keyedstate.bakend", "Spark configuration", ["spark.keyedstate.backend"]),
    errors.InvalidOptionError("parallelism", "many", "a whole number of at least 1", "call"),
    errors.MissingOptionError("spark.keyedstate.checkpoint.dir", "Where checkpoints are."),
    errors.PluginError("something about plugins"),
    errors.UnknownBackendError("heap-cwo", ["heap-cow"], None),
    errors.DuplicateProviderError("backend", "mine", ["alpha 1.0", "beta 2.0"]),
    errors.PluginNotAllowedError("mine", "plugins.deny", ["mine"]),
    errors.HookApiVersionError("mine", "alpha 1.0", (2, 3), (1, 1)),
    errors.InvalidPluginError("mine", "alpha 1.0", "it is broken"),
    errors.MissingCapabilityError("recent", "list state", "never", "mine", ["able"]),
    errors.UserFunctionError("ValueError: no. Raised in F.process().", {"key": ("a", 1), "epoch": 3}),
]


def test_every_error_of_the_kernel_has_an_example_here():
    classes = {value for value in vars(kernel).values() if inspect.isclass(value)} | {
        errors.UserFunctionError
    }
    assert {type(error) for error in EXAMPLES} == {cls for cls in classes if issubclass(cls, KeyedStateError)}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_facts_and_its_message(error):
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_an_error_survives_a_process_border():
    """As it crosses from a worker to the driver: raised there, caught here."""
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(UnknownOptionError) as caught,
    ):
        pool.submit(Configuration, {"bakend": "nowhere"}).result()
    assert caught.value.key == "bakend"


def test_the_message_of_an_error_is_one_line_that_ends_a_sentence():
    for error in EXAMPLES:
        if type(error).__init__ is not KeyedStateError.__init__:  # else the text is its caller's
            assert "\n" not in str(error) and str(error).endswith("."), repr(error)
