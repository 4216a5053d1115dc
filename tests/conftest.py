"""What every test shares: the choice of backends, markers by folder, and the options of long tests."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from support.java import fast

from keyedstate.backend import BackendDescription
from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry

TESTS = Path(__file__).parent

# How long an example takes says how busy the machine is.  Each run draws others, so few find as much in time.
hypothesis.settings.register_profile(
    "keyedstate",
    hypothesis.settings(),
    max_examples=40,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("keyedstate")

#: The backends of this repository, each with the folder name of the tests that concern it alone.
BACKENDS = {
    "heap-cow": "heap_cow",
    "nested-map": "nested_map",
    "rocksdb": "rocksdb",
    "spillable": "spillable",
}
#: Those that tests of all backends leave out unless they are chosen: each has a test environment.
ONLY_CHOSEN = {"rocksdb", "spillable"}

#: Databases synchronize what they write, which took as long as the rest of their tests.
SHARED_MEMORY = Path("/dev/shm")
#: Bytes that the files of the tests never exceed: pytest deletes those of a test that has passed.
FILES_OF_TESTS = 4 << 30

#: The environment variable whose number decides what ``--draw`` takes.
DRAW = "KEYEDSTATE_TEST_DRAW"
#: What the contract kit runs long, for backends of which other tests show the same.
LONG_IN_KIT = {
    "test_a_state_of_five_times_the_memory_is_whole": ("spillable", "contrib"),
    "test_the_states_of_an_operator_hold_what_dicts_would": ("UncompiledHeapCow", "nested_map", "contrib"),
    "test_entries_live_as_long_as_a_plain_model_says": ("UncompiledHeapCow", "nested_map", "contrib"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; pytest reads them from here also when a single folder is run."""
    parser.addoption(
        "--cow-operations",
        type=int,
        default=0,
        metavar="N",
        help="operations of the copy-on-write map's model test; 0 is the number the test itself chooses",
    )
    parser.addoption(
        "--interleavings",
        type=int,
        default=0,
        metavar="N",
        help="random histories of the protocol's model, and all of its systematic ones; 0 is a sample",
    )
    parser.addoption("--soak", action="store_true", help="the long forms of tests that have one")
    parser.addoption(
        "--draw",
        action="store_true",
        help="run a slow test with one of its sets of parameters only, a new one in each run",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let programs print as without a terminal, have their files in memory, and start Java fast."""
    if "TMPDIR" not in os.environ and files_fit_in_memory():
        os.environ["TMPDIR"] = str(SHARED_MEMORY)
        tempfile.tempdir = None
    if config.getoption("--draw"):
        # The processes of pytest-xdist inherit it, since they have to draw the same.
        os.environ.setdefault(DRAW, str(random.SystemRandom().randrange(1_000_000)))
    os.environ.setdefault("JDK_JAVA_OPTIONS", fast())
    # A shell lets what it starts in the background ignore Ctrl-C, and so would all processes of the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say how the run's choice of parameters is drawn again."""
    return f"parameters of slow tests: {DRAW}={os.environ[DRAW]}" if config.getoption("--draw") else None


def files_fit_in_memory() -> bool:
    """Return whether shared memory has room for the files of tests, and lets programs run."""
    if not os.access(SHARED_MEMORY, os.R_OK | os.W_OK | os.X_OK):
        return False
    found = os.statvfs(SHARED_MEMORY)
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= FILES_OF_TESTS


@pytest.fixture(scope="session", autouse=True)
def files_need_not_survive_the_machine() -> Iterator[None]:
    """Leave out `os.fsync`, which took a seventh of the time; processes that a test kills still call it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


def chosen_backends() -> list[str]:
    """Every backend, or the one that the environment variable ``KEYEDSTATE_TEST_BACKEND`` names."""
    chosen = os.environ.get("KEYEDSTATE_TEST_BACKEND")
    if not chosen:
        return list(BACKENDS)
    if chosen not in BACKENDS:
        raise pytest.UsageError(
            f"KEYEDSTATE_TEST_BACKEND={chosen!r} names no backend of this repository; "
            f"it may be one of {', '.join(BACKENDS)}."
        )
    return [chosen]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for ``backend_name`` once per chosen backend."""
    if "backend_name" in metafunc.fixturenames:
        chosen = chosen_backends()
        metafunc.parametrize(
            "backend_name", [name for name in chosen if name not in ONLY_CHOSEN or chosen == [name]]
        )


@pytest.hookimpl(tryfirst=True)  # before pytest applies -m, which needs the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by folder and fixture; leave out those whose folder or parameter is a backend not chosen."""
    chosen = chosen_backends()
    kept, left_out = [], []
    for item in items:
        folders = item.path.relative_to(TESTS).parts[:-1] if item.path.is_relative_to(TESTS) else ()
        fixtures = getattr(item, "fixturenames", ())
        if "spark" in folders or "spark" in fixtures:
            item.add_marker("spark")
        parameters = list(item.callspec.params.values()) if hasattr(item, "callspec") else []
        concerned = {name for name, folder in BACKENDS.items() if folder in folders}
        concerned |= {value for value in parameters if isinstance(value, str) and value in BACKENDS}
        parts = [part for value in parameters for part in (value if isinstance(value, tuple) else (value,))]
        named = any(isinstance(part, str) and part.startswith(tuple(BACKENDS)) for part in parts)
        if concerned or named or {"backend_name", "one_backend"} & set(fixtures):
            item.add_marker("backend")
        if any(part in item.nodeid for part in LONG_IN_KIT.get(getattr(item, "originalname", ""), ())):
            item.add_marker("long")
        (kept if not concerned or concerned & set(chosen) else left_out).append(item)
    if config.getoption("--draw"):
        kept, not_drawn = drawn(kept, os.environ[DRAW])
        left_out += not_drawn
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def drawn(items: list[pytest.Item], draw: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return what runs, and what does not: of a slow test one set of parameters, as the draw has it."""
    sets: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("long") and is_slow(item):
            sets.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = {name: random.Random(f"{draw} {name}").choice(several) for name, several in sets.items()}
    not_drawn = {each for name, several in sets.items() for each in several if each is not chosen[name]}
    return [item for item in items if item not in not_drawn], [item for item in items if item in not_drawn]


def is_slow(item: pytest.Item) -> bool:
    """Return whether the test starts Spark, is marked as slow or belongs to the contract kit."""
    of_kit = getattr(item, "function", is_slow).__module__.startswith("keyedstate.testing")
    return of_kit or any(item.get_closest_marker(name) for name in ("slow", "spark"))


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> bool:
    """Whether the long form of the test is asked for."""
    return bool(request.config.getoption("--soak"))


@pytest.fixture
def one_backend() -> str:
    """The backend for tests in which any will do."""
    return os.environ.get("KEYEDSTATE_TEST_BACKEND") or "heap-cow"


@pytest.fixture
def description(backend_name: str) -> BackendDescription:
    """What the backend of the test claims."""
    return PluginRegistry(Configuration({})).choose(backend_name).description


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real S3-compatible server; a test that kills it starts it again."""
    pytest.importorskip("moto", reason="moto's server is in the extra keyedstate[test]")
    spec = importlib.util.spec_from_file_location("keyedstate_object_store", TESTS / "object_store.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    store = module.ObjectStore(tmp_path_factory.mktemp("object-store") / "log")
    try:
        store.start()
        yield store
    finally:
        store.kill()


@pytest.fixture
def environment_with_pytest_plugin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment for a new process in which pytest finds keyedstate's plugin by entry point.

    An editable installation that is older than the entry point has none in its metadata; then a distribution
    of the tests has it.
    """
    value = "keyedstate.testing.pytest_plugin"
    path = os.environ.get("PYTHONPATH", "")
    if not any(entry.value == value for entry in entry_points(group="pytest11")):
        metadata = tmp_path_factory.mktemp("site") / "stands_in-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stands-in\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[pytest11]\nkeyedstate = {value}\n")
        path = os.pathsep.join(filter(None, [path, str(metadata.parent)]))
    return {**os.environ, "PYTHONPATH": path}
