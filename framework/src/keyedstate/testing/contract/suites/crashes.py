"""What must survive a killed process, and what must not survive a damaged file."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import EntryBatch, SnapshotSink, StateKind, StateMeta
from keyedstate.checkpoint.format import segment_format
from keyedstate.checkpoint.format.segment import SegmentHandle
from keyedstate.checkpoint.protocol import operator_folder as folder_format
from keyedstate.errors import CorruptFileError, FormatVersionError, KeyedStateError
from keyedstate.state import ValueState
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing.contract.base import ContractBase, requires
from keyedstate.testing.contract.keyed import KeyedInstances
from keyedstate.testing.crashing import POINTS, UID, CrashingJob, expected

#: Epochs that are published before the process dies in the next one.
EPOCHS = 2
WORDS = ValueState("words", types.STRING)
KEYS = range(400)

Damage = Callable[[bytes, bytes], bytes]


def _flipped(part: float) -> Damage:
    def flip(data: bytes, other: bytes) -> bytes:
        position = int(part * (len(data) - 1))
        return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]

    return flip


#: What can happen to a file, given its bytes and those of another one.
DAMAGES: dict[str, Damage] = {
    **{f"a bit flipped at {part:.0%}": _flipped(part) for part in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1)},
    "cut off": lambda data, other: data[: len(data) // 2],
    "empty": lambda data, other: b"",
    "swapped": lambda data, other: other,
    "zeroed": lambda data, other: bytes(len(data)),
}


class CrashContract(ContractBase):
    """Tests of killed processes and damaged files."""

    @pytest.fixture
    def job(self, tmp_path: Path) -> CrashingJob:
        """An operator whose first epochs are published."""
        job = CrashingJob(str(tmp_path / "operators"), self.backend, dict(self.options))
        for epoch in range(EPOCHS):
            job.run("run-1", epoch)
        return job

    # -- killed processes -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("point", POINTS)
    def test_the_last_published_state_is_there_after_a_kill(self, job: CrashingJob, point: str) -> None:
        """And the epoch in which the process died counts once when it runs again."""
        killed = job.in_another_process("run", run_id="run-2", epoch=EPOCHS, point=point)
        assert killed.exit_code == -signal.SIGKILL, killed.error
        if point == "while the segment is written" and StateKind.VALUE in job.kinds():
            half = Path(job.folder, UID, "data", f"run-2-{EPOCHS}-1.seg")
            assert half.stat().st_size > 1_000_000, "a part of the file was really on the disk"
        survived = EPOCHS + (point == POINTS[-1])
        assert job.read() == (survived - 1, expected(job.kinds(), survived))
        job.run("run-3", EPOCHS)
        assert job.read() == (EPOCHS, expected(job.kinds(), EPOCHS + 1))

    def test_another_process_reads_what_this_one_wrote(self, job: CrashingJob) -> None:
        """The files say everything: nothing that this process knows is needed."""
        read = job.in_another_process("read")
        assert read.exit_code == 0, read.error
        assert read.result == (EPOCHS - 1, expected(job.kinds(), EPOCHS))

    # -- damaged files --------------------------------------------------------------------------------------

    @requires(StateKind.VALUE)
    @pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
    def test_a_damaged_file_is_found_before_a_value_of_it_is_used(
        self, keyed: KeyedInstances, tmp_path: Path, damage: Damage
    ) -> None:
        """Nothing of it is restored, and the refused instance leaves no file."""
        backend = _words(keyed, "word")
        intact = keyed.write_file(backend, backend.snapshot(1))
        backend = _words(keyed, "another")
        other = keyed.write_file(backend, backend.snapshot(1))
        backend.close()
        path = Path(keyed.storage.root, intact.path)
        path.write_bytes(damage(path.read_bytes(), Path(keyed.storage.root, other.path).read_bytes()))
        folders = set(tmp_path.iterdir())
        with pytest.raises(CorruptFileError) as caught:
            _read_words(keyed, [SegmentHandle.open(keyed.storage, intact)])
        assert caught.value.path == keyed.storage.location(intact.path)
        keyed.close()
        assert set(tmp_path.iterdir()) <= folders

    @requires(StateKind.VALUE)
    def test_a_file_of_a_newer_format_is_refused_by_its_version(
        self, keyed: KeyedInstances, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        current = segment_format.FORMAT_VERSION
        backend = _words(keyed, "word")
        with monkeypatch.context() as patch:
            patch.setattr(segment_format, "FORMAT_VERSION", current + 1)
            newer = keyed.write_file(backend, backend.snapshot(1))
        with pytest.raises(FormatVersionError, match="Upgrade keyedstate") as caught:
            _read_words(keyed, [SegmentHandle.open(keyed.storage, newer)])
        assert (caught.value.version, caught.value.supported) == (current + 1, current)

    def test_a_checkpoint_of_a_newer_format_is_refused_by_its_version(
        self, job: CrashingJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not passed over for the one before it, which would take the state back."""
        current = folder_format.FORMAT_VERSION
        with monkeypatch.context() as patch:
            patch.setattr(folder_format, "FORMAT_VERSION", current + 1)
            job.run("run-2", EPOCHS)
        # This one has not read what the newer one has.
        folder_format._decode_once.cache_clear()
        for go_on in (job.read, lambda: job.run("run-3", EPOCHS + 1)):
            with pytest.raises(FormatVersionError, match="Upgrade keyedstate") as caught:
                go_on()
            assert (caught.value.version, caught.value.supported) == (current + 1, current)

    @requires(StateKind.VALUE)
    def test_a_storage_that_fails_half_way_fails_the_snapshot_and_leaves_the_state(
        self, keyed: KeyedInstances
    ) -> None:
        """A full disk: the error comes through, and the next snapshot is whole."""
        backend = _words(keyed, "word")
        for key_groups in (0, 3, 15):
            with pytest.raises(FullDiskError):
                backend.snapshot(key_groups).run(FullDisk(key_groups))
        assert _read_words(keyed, [keyed.snapshot(backend)]) == {key: f"word-{key}" for key in KEYS}


class FullDiskError(KeyedStateError):
    """What `FullDisk` raises."""

    message = "no space left on device."


class FullDisk(SnapshotSink):
    """Takes some key groups and refuses the next one."""

    def __init__(self, key_groups: int) -> None:
        self._left = key_groups

    def begin_state(self, meta: StateMeta) -> None:
        """Do nothing."""

    def write_entries(self, key_group: int, batches: Iterable[EntryBatch[Any, Any, Any]]) -> None:
        if not self._left:
            raise FullDiskError()
        self._left -= 1
        for _ in batches:
            pass


def _words(keyed: KeyedInstances, word: str) -> KeyedStateBackend:
    backend = keyed.open()
    words = backend.get_state(WORDS)
    words.update_many(KEYS, [f"{word}-{key}" for key in KEYS])
    return backend


def _read_words(keyed: KeyedInstances, handles: Sequence[SegmentHandle]) -> dict[int, str | None]:
    """Restore and read everything: a backend may read a file at the access to an entry."""
    backend = keyed.open(handles)
    return dict(zip(KEYS, backend.get_state(WORDS).get_many(KEYS), strict=True))
