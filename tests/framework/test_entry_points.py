"""The entry points of installed distributions are read once, and again where an installation has changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from keyedstate.entry_points import installed_entry_points

GROUP = "keyedstate_tests.things"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, name: str, thing: str) -> Path:
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{thing} = {name}:thing\n[other]\nx = {name}:x\n")
    # Two changes may fall into one tick of the file system's clock.
    stamp = site.stat().st_mtime_ns + 1_000_000
    os.utime(site, ns=(stamp, stamp))
    return metadata


def found() -> list[tuple[str, str]]:
    return [(entry.name, entry.value) for entry in installed_entry_points(GROUP)]


def test_a_distribution_that_is_installed_later_is_found(site: Path) -> None:
    assert found() == []
    install(site, "first", "one")
    assert found() == [("one", "first:thing")]
    install(site, "second", "two")
    assert sorted(found()) == [("one", "first:thing"), ("two", "second:thing")]


def test_a_distribution_that_was_removed_is_found_no_more(site: Path) -> None:
    metadata = install(site, "first", "one")
    assert found() == [("one", "first:thing")]
    shutil.rmtree(metadata)
    assert found() == []


def test_a_folder_that_leaves_the_path_takes_its_entry_points_along(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "first", "one")
    assert found() == [("one", "first:thing")]
    monkeypatch.syspath_prepend(site / "missing")
    assert found() == [("one", "first:thing")]
    monkeypatch.undo()
    assert found() == []


def test_a_distribution_that_is_found_twice_counts_once(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "first", "one")
    again = tmp_path / "again"
    again.mkdir()
    shutil.copytree(site / "first-1.0.dist-info", again / "first-1.0.dist-info")
    monkeypatch.syspath_prepend(again)
    assert found() == [("one", "first:thing")]
    assert {entry.group for entry in installed_entry_points(GROUP, "other")} == {GROUP, "other"}


def test_nothing_is_read_while_no_installation_changes(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "first", "one")
    assert found() == [("one", "first:thing")]

    def no_reading(*_: object) -> None:
        raise AssertionError("the distributions were read again")

    monkeypatch.setattr("keyedstate.entry_points.entry_points", no_reading)
    assert found() == [("one", "first:thing")]
