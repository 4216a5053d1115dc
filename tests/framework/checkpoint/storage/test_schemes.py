"""Schemes of plugins: which plugin is asked, which wins, and what the errors say."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from keyedstate.checkpoint.storage import process_plugins
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import (
    DuplicateProviderError,
    InvalidOptionError,
    InvalidPluginError,
    StorageError,
    UnknownSchemeError,
)
from keyedstate.options import STORAGE_OPTIONS, Configuration

SOURCE = """
import pyarrow.fs
from urllib.parse import urlsplit
from keyedstate.hooks import hookimpl

asked = []

@hookimpl
def keyedstate_checkpoint_storage(uri, options):
    asked.append((uri, options))
    parts = urlsplit(uri)
    if parts.scheme == {scheme!r}:
        {answer}
"""
OVER_A_FOLDER = (
    "return pyarrow.fs.SubTreeFileSystem(options['folder'], pyarrow.fs.LocalFileSystem()), parts.path[1:]"
)
Install = Callable[..., Any]


@pytest.fixture(autouse=True)
def plugins_are_found_anew() -> Iterator[None]:
    yield
    process_plugins._registry.cache_clear()


@pytest.fixture
def install(distributions: Any) -> Install:
    """Installs a plugin without a backend, for one scheme."""
    process_plugins._registry.cache_clear()

    def installed(distribution: str, scheme: str = "vault", answer: str = OVER_A_FOLDER) -> Any:
        name = distribution.replace("-", "_")
        source = SOURCE.format(scheme=scheme, answer=answer)
        (distributions.folder / f"{name}.py").write_text(source, encoding="utf-8")
        metadata = distributions.add_metadata(distribution, "1.0")
        text = f"[keyedstate.plugins]\n{distribution} = {name}\n"
        (metadata / "entry_points.txt").write_text(text, encoding="utf-8")
        return distributions

    return installed


def settings(folder: Path, **options: object) -> Configuration:
    folder.mkdir(exist_ok=True)
    explicit = {name.replace("__", "."): value for name, value in options.items()}
    return Configuration({"storage.options": {"folder": str(folder)}, **explicit})


def test_an_installed_plugin_without_a_backend_opens_its_scheme(install: Install, tmp_path: Path) -> None:
    install("vault-files")
    config = settings(tmp_path / "vault")
    storage = CheckpointStorage.open("vault://keys/state?version=2", config)
    storage.child("views").write_atomic("_owner", b"me")
    assert (tmp_path / "vault" / "state" / "views" / "_owner").read_bytes() == b"me"
    assert storage.child("views").uri == "vault://keys/state/views?version=2"
    # What another process gets from the child's address.
    assert CheckpointStorage.open(storage.child("views").uri, config).read("_owner") == b"me"
    assert storage.child("views").location("_owner") == "vault://keys/state/views/_owner"


def test_a_module_of_the_option_is_asked_as_well(
    install: Install, tmp_path: Path, distributions: Any
) -> None:
    (distributions.folder / "my_vault.py").write_text(SOURCE.format(scheme="vault", answer=OVER_A_FOLDER))
    storage = CheckpointStorage.open(
        "vault://keys/state", settings(tmp_path / "vault", plugins__modules="my_vault")
    )
    storage.write_atomic("one", b"1")
    assert (tmp_path / "vault" / "state" / "one").read_bytes() == b"1"


def test_without_a_configuration_the_environment_counts(
    install: Install, tmp_path: Path, distributions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (distributions.folder / "my_vault.py").write_text(SOURCE.format(scheme="vault", answer=OVER_A_FOLDER))
    monkeypatch.setenv("KEYEDSTATE_PLUGINS_MODULES", "my_vault")
    monkeypatch.setenv("KEYEDSTATE_STORAGE_OPTIONS", f"folder={tmp_path}")
    monkeypatch.setenv("KEYEDSTATE_STORAGE_RETRIES", "2")
    storage = CheckpointStorage.open("vault://keys/state")
    storage.write_atomic("one", b"1")
    assert (tmp_path / "state" / "one").read_bytes() == b"1"
    assert storage.retry.retries == 2


def test_a_backend_that_is_not_the_chosen_one_is_asked_as_well(
    install: Install, tmp_path: Path, distributions: Any
) -> None:
    hook = SOURCE.format(scheme="vault", answer=OVER_A_FOLDER)
    distributions.add("my-backend", "1.0", "mine", extra=hook)
    CheckpointStorage.open("vault://k/state", settings(tmp_path / "vault")).write_atomic("one", b"1")
    assert (tmp_path / "vault" / "state" / "one").exists()


def test_a_plugin_is_given_the_whole_uri_and_the_options(install: Install, tmp_path: Path) -> None:
    install("vault-files")
    CheckpointStorage.open("vault://keys/state?version=2", settings(tmp_path / "vault"))
    import vault_files  # type: ignore[import-not-found]

    assert vault_files.asked == [("vault://keys/state?version=2", {"folder": str(tmp_path / "vault")})]


def test_a_plugin_may_serve_a_scheme_of_pyarrow_in_its_stead(install: Install, tmp_path: Path) -> None:
    install("my-s3", scheme="s3")
    CheckpointStorage.open("s3://bucket/state", settings(tmp_path / "s3")).write_atomic("one", b"1")
    assert (tmp_path / "s3" / "state" / "one").exists()


def test_a_plugin_may_serve_file_uris(install: Install, tmp_path: Path) -> None:
    install("vault-files", scheme="file")
    storage = CheckpointStorage.open("file:///state", settings(tmp_path / "vault"))
    storage.child("views").write_atomic("one", b"1")
    assert (tmp_path / "vault" / "state" / "views" / "one").exists()
    assert storage.child("views").uri == "file:///state/views"


def test_a_file_uri_that_no_plugin_serves_is_a_local_folder(install: Install, tmp_path: Path) -> None:
    install("vault-files")
    storage = CheckpointStorage.open(f"file://{tmp_path}", settings(tmp_path / "vault"))
    assert storage.is_local and storage.uri == str(tmp_path)


def test_no_plugin_is_asked_about_a_path_without_a_scheme(install: Install, tmp_path: Path) -> None:
    install("vault-files", scheme="file", answer="raise RuntimeError('asked')")
    assert CheckpointStorage.open(tmp_path, settings(tmp_path / "x")).uri == str(tmp_path)


def test_a_plugins_local_file_system_is_treated_as_a_local_disk(install: Install, tmp_path: Path) -> None:
    answer = "return pyarrow.fs.LocalFileSystem(), options['folder'] + parts.path"
    install("vault-files", answer=answer)
    storage = CheckpointStorage.open("vault://k/state", settings(tmp_path / "vault"))
    assert storage.is_local and storage.uri == "vault://k/state"
    storage.write_atomic("one", b"1")
    assert storage.list() == ["one"]


def test_two_plugins_for_one_scheme_are_refused_with_both_named(install: Install, tmp_path: Path) -> None:
    install("vault-files")
    install("other-vault")
    with pytest.raises(DuplicateProviderError, match=r"other-vault 1\.0 and by vault-files 1\.0") as caught:
        CheckpointStorage.open("vault://k/state", settings(tmp_path / "vault"))
    assert "'plugins.prefer'" in str(caught.value)
    assert caught.value.providers == ("other-vault 1.0", "vault-files 1.0")
    preferring = settings(tmp_path / "vault", plugins__prefer="other_vault")
    CheckpointStorage.open("vault://k/state", preferring).write_atomic("one", b"1")


def test_a_denied_plugin_is_not_asked_and_the_error_names_it(install: Install, tmp_path: Path) -> None:
    install("vault-files")
    with pytest.raises(UnknownSchemeError, match=r"Not asked: .*'vault-files' may not be used") as caught:
        CheckpointStorage.open("vault://k/state", settings(tmp_path / "v", plugins__deny="vault-files"))
    assert len(caught.value.unusable) == 1


def test_a_broken_plugin_matters_only_for_an_unknown_scheme(
    install: Install, tmp_path: Path, distributions: Any
) -> None:
    install("vault-files")
    distributions.add_source("broken", "1.0", "broken", "raise RuntimeError('boom')")
    CheckpointStorage.open("vault://k/state", settings(tmp_path / "vault")).write_atomic("one", b"1")
    with pytest.raises(
        UnknownSchemeError, match=r"scheme 'valt'.*importing it failed with RuntimeError: boom"
    ):
        CheckpointStorage.open("valt://k/state", settings(tmp_path / "vault"))


def test_a_hook_that_raises_is_named_with_its_error_and_without_passwords(
    install: Install, tmp_path: Path
) -> None:
    install("vault-files", answer="raise LookupError('no entry for ' + uri)")
    with pytest.raises(StorageError, match=r"vault-files 1\.0 failed with LookupError") as caught:
        CheckpointStorage.open("vault://me:TOP@k/state?token=SECRET", settings(tmp_path / "vault"))
    assert "TOP" not in str(caught.value) and "SECRET" not in str(caught.value)
    assert isinstance(caught.value.__cause__, LookupError)
    assert pickle.loads(pickle.dumps(caught.value)).reason == caught.value.reason


@pytest.mark.parametrize(
    ("answer", "shown"),
    [("return 'here'", "str"), ("return pyarrow.fs.LocalFileSystem()", "LocalFileSystem"),
     ("return pyarrow.fs.LocalFileSystem(), 7", r"\(LocalFileSystem, int\)"), ("return {}", "dict")],
)  # fmt: skip
def test_a_hook_that_returns_something_else_is_named(
    install: Install, tmp_path: Path, answer: str, shown: str
) -> None:
    install("vault-files", answer=answer)
    with pytest.raises(StorageError, match=rf"of vault-files 1\.0 returned {shown} and not a pyarrow file"):
        CheckpointStorage.open("vault://k/state", settings(tmp_path / "vault"))


def test_a_misspelt_hook_of_a_plugin_without_a_backend_is_found(
    install: Install, tmp_path: Path, distributions: Any
) -> None:
    install("vault-files")
    module = distributions.folder / "vault_files.py"
    module.write_text(module.read_text() + "\n@hookimpl\ndef keyedstate_checkpoint_storge(uri): pass\n")
    with pytest.raises(UnknownSchemeError, match="Did you mean 'keyedstate_checkpoint_storage'"):
        CheckpointStorage.open("vault://k/state", settings(tmp_path / "vault"))


def test_a_module_without_any_hook_is_refused(install: Install, distributions: Any, tmp_path: Path) -> None:
    (distributions.folder / "empty_one.py").write_text("")
    with pytest.raises(InvalidPluginError, match="it has no hook"):
        CheckpointStorage.open("vault://k/a", settings(tmp_path / "v", plugins__modules="empty_one"))


def test_a_distribution_may_have_a_backend_and_another_plugin(
    install: Install, distributions: Any, tmp_path: Path
) -> None:
    install("vault-files")
    metadata = next(distributions.folder.glob("vault_files-1.0.dist-info"))
    (distributions.folder / "its_backend.py").write_text(distributions.source("mine"))
    with (metadata / "entry_points.txt").open("a", encoding="utf-8") as file:
        file.write("[keyedstate.backends]\nmine = its_backend\n")
    CheckpointStorage.open("vault://k/state", settings(tmp_path / "vault")).write_atomic("one", b"1")
    assert distributions.registry(backend="mine").choose().name == "mine"


def test_the_options_for_plugins_are_read_from_a_mapping_or_a_string() -> None:
    for value in ({"a": "1", "b": "x=y"}, " a = 1, b=x=y,", [("a", 1), ("b", "x=y")]):
        assert Configuration({"storage.options": value})[STORAGE_OPTIONS] == (("a", "1"), ("b", "x=y"))
    for wrong in ("a", "=1", "a=1,a=2", 7, ["a"], [("", 1)]):
        with pytest.raises(InvalidOptionError, match="pairs such as name=value"):
            Configuration({"storage.options": wrong})[STORAGE_OPTIONS]


def test_what_a_plugins_file_system_raises_is_a_storage_error(install: Install, tmp_path: Path) -> None:
    class Client(pafs.FileSystemHandler):  # type: ignore[misc]
        def get_type_name(self) -> str:
            return "client"

        def open_input_stream(self, path: str) -> Any:
            raise LookupError(f"the client cannot find its way to {path}")

    for name in pafs.FileSystemHandler.__abstractmethods__ - {"get_type_name", "open_input_stream"}:
        setattr(Client, name, lambda self, *arguments: None)
    Client.__abstractmethods__ = frozenset()
    storage = CheckpointStorage(pafs.PyFileSystem(Client()), "root", "client:root")
    with pytest.raises(StorageError, match=r"cannot read client:root/one: .*find its way to root/one"):
        storage.read("one")
