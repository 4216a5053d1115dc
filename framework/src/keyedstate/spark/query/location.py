"""Spark's checkpoint location of one query: its committed micro-batches, and the files to continue from one.

::

    metadata            the query's id
    offsets/<epoch>     where each source ended in that micro-batch; written before it runs
    commits/<epoch>     the micro-batch is done
    sources/<n>/...     files of source n; of a file source, the log of the files that it has read
    state/...           Spark's own stateful operators

A copy of these files up to a committed micro-batch is a location that continues after it.  The log of a file
source is cut there: files that the query has read since are new to the copy.  Other sources write their files
once, when they start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, Location
from keyedstate.errors import MissingFileError, SparkLocationError
from keyedstate.spark.addresses import without_hadoop_scheme

_NUMBER = re.compile(r"(0|[1-9][0-9]*)")
_LOG_FILE = re.compile(r"(0|[1-9][0-9]*)(\.compact)?")
#: How often files are read again, because a running query deletes old ones.
_READINGS = 5


@dataclass(frozen=True)
class QueryLocation:
    """The checkpoint location of one query."""

    storage: CheckpointStorage

    @classmethod
    def open(cls, location: Location) -> QueryLocation:
        """Open a location, which need not exist, by its path or a URI, also one of Hadoop (``s3a://``)."""
        if isinstance(location, CheckpointStorage):
            return cls(location)
        return cls(CheckpointStorage.open(without_hadoop_scheme(str(location))))

    @property
    def location(self) -> str:
        """The address, for people."""
        return self.storage.location()

    def query_id(self) -> str:
        """Return the id of the query; raises `SparkLocationError` if it has none."""
        try:
            document = json.loads(self.storage.read("metadata"))
            return str(document["id"])
        except MissingFileError:
            found = ", ".join(self.storage.list()) or "nothing"
            reason = f"it has no file metadata; it has {found}"
        except (ValueError, TypeError, KeyError) as error:
            reason = f"its file metadata is not one of Spark's ({error})"
        raise SparkLocationError(self.location, reason, "Give the option checkpointLocation of the query.")

    def committed(self) -> list[int]:
        """Return the committed micro-batches that have offsets, ascending."""
        offsets, commits = (
            {int(name) for name in self.storage.list(folder) if _NUMBER.fullmatch(name)}
            for folder in ("offsets", "commits")
        )
        return sorted(offsets & commits)

    def refuse_state(self) -> None:
        """Raise `SparkLocationError` if the query has stateful operators of Spark."""
        if any(not name.startswith(".") for name in self.storage.list("state")):
            raise SparkLocationError(
                self.location,
                "the query has stateful operators of Spark's own (the folder state exists), and a savepoint "
                "does not contain their state",
                "Do what they do (dropDuplicates, aggregations, joins) in keyed functions, or take the "
                "savepoint without Spark's checkpoint location: a new query may begin from its keyed state.",
            )

    def files_at(self, epoch: int) -> dict[str, bytes]:
        """Return the files, all small, of a query that continues after a committed micro-batch, by path.

        Raises `SparkLocationError`, also if a file is missing or has an unknown form, and for a query with
        state of Spark's own, which these files do not have.
        """
        self.refuse_state()
        return self.files_without_state(epoch)

    def files_without_state(self, epoch: int) -> dict[str, bytes]:
        """Return what `files_at` does, for a query whose state of Spark's own is no longer needed."""
        for remaining in reversed(range(_READINGS)):
            try:
                return self._read_files(epoch)
            except MissingFileError as error:
                if not remaining:
                    reason = f"of the micro-batch {epoch} something is missing, {error.uri}"
                    raise SparkLocationError(self.location, reason, "Take a newer one.") from error
        raise AssertionError("unreachable")

    def write(self, files: Mapping[str, bytes], query_id: str) -> None:
        """Write the files of `files_at` as the location of another query, its id last.

        Spark gives a location without an id a new one, which no state folder knows, so a query that starts
        from an incomplete location is refused.
        """
        for path in sorted(files):
            if path != "metadata":
                self.storage.write_atomic(path, files[path])
        self.storage.write_atomic("metadata", json.dumps({"id": query_id}).encode("ascii"))

    def _read_files(self, epoch: int) -> dict[str, bytes]:
        paths = ["metadata", f"offsets/{epoch}", f"commits/{epoch}"]
        # Spark restarts sources with the micro-batch before, and reads where that one ended.
        if epoch > 0:
            paths += [f"offsets/{epoch - 1}"]
            paths += [f"commits/{epoch - 1}"] if self.storage.exists(f"commits/{epoch - 1}") else []
        files = {path: self.storage.read(path) for path in paths}
        files.update(self._source_files(epoch, _source_offsets(self.location, files[f"offsets/{epoch}"])))
        return files

    def _source_files(self, epoch: int, offsets: list[str]) -> Iterator[tuple[str, bytes]]:
        seen: dict[str, list[str]] = {}
        for path in self.storage.files("sources"):
            _, source, *rest = path.split("/")
            if rest and not any(part.startswith(".") for part in rest):
                seen.setdefault(source, []).append("/".join(rest))
        logs = {source: names for source, names in seen.items() if self._is_file_log(source, names)}
        ends = self._log_ends(list(logs), offsets)
        for source, names in seen.items():
            if source in logs:
                yield from self._cut_log(source, names, ends[source])
            else:
                for name in names:
                    path = f"sources/{source}/{name}"
                    yield path, self.storage.read(path)

    def _is_file_log(self, source: str, names: list[str]) -> bool:
        if not all(map(_LOG_FILE.fullmatch, names)):
            return False
        lines = self.storage.read(f"sources/{source}/{names[0]}").splitlines()
        entry = _parsed(lines[1].decode()) if len(lines) > 1 else None
        return isinstance(entry, dict) and {"path", "timestamp", "batchId"} <= entry.keys()

    def _log_ends(self, logs: list[str], offsets: list[str]) -> dict[str, int]:
        """Return the last valid entry of each log of a file source.

        The offsets are in the order of the plan, and a source that is in it twice has two.
        """
        parsed = [_log_offset(offset) for offset in offsets]
        known = [end for end in parsed if end is not None and end >= 0]
        if self._is_in_order(logs, parsed, known):
            ends = ((source, parsed[int(source)]) for source in logs)
            return {source: end for source, end in ends if end is not None}
        if len(set(known)) == 1 and -1 not in parsed:
            return dict.fromkeys(logs, known[0])
        raise SparkLocationError(
            self.location,
            f"it is unclear which of the offsets {', '.join(offsets)} is that of which of the file sources "
            f"{', '.join(logs)}",
            "Read each folder by one DataFrame, and use that one twice in another way than in a union.",
        )

    def _is_in_order(self, logs: list[str], parsed: list[int | None], known: list[int]) -> bool:
        """Return whether each source surely has one offset, so that they are in the order of the sources."""
        if not all(source.isdecimal() and int(source) < len(parsed) for source in logs):
            return False
        if any(parsed[int(source)] is None for source in logs):
            return False
        # A source with an offset has a log. One without may have written its log since.
        each_has_one = all(
            str(number) in logs for number, end in enumerate(parsed) if end is not None and end >= 0
        )
        return each_has_one and (-1 not in parsed or len(set(known)) == len(known))

    def _cut_log(self, source: str, names: list[str], end: int) -> Iterator[tuple[str, bytes]]:
        """Yield a file source's log up to an entry.

        Spark compacts the log now and then into one file, such as ``19.compact``, and deletes those before.
        If that file is beyond the end, its entries up to the end become a compacted file.
        """
        files = {int(name.partition(".")[0]): name for name in names}
        compacted = [number for number, name in files.items() if name.endswith(".compact")]
        begin = max((number for number in compacted if number <= end), default=0)
        if all(number in files for number in range(begin, end + 1)):
            for number in sorted(files):
                if number <= end:
                    path = f"sources/{source}/{files[number]}"
                    yield path, self.storage.read(path)
            return
        beyond = min((number for number in compacted if number > end), default=None)
        if beyond is None:
            # Deleted after it was listed.
            raise MissingFileError(self.storage.location(f"sources/{source}/{end}"), "read")
        version, *entries = self.storage.read(f"sources/{source}/{files[beyond]}").decode().split("\n")
        kept = [entry for entry in entries if _batch_of(self.location, entry) <= end]
        yield f"sources/{source}/{end}.compact", "\n".join([version, *kept]).encode()


def _source_offsets(location: str, data: bytes) -> list[str]:
    version, *lines = data.decode().split("\n")
    if version != "v1" or len(lines) < 2:
        raise SparkLocationError(
            location,
            f"its offsets have a form that is not known here (they begin with {version!r})",
            "Upgrade keyedstate, or take the savepoint without Spark's checkpoint location.",
        )
    return lines[1:]


def _log_offset(offset: str) -> int | None:
    """Return a file source's offset, -1 for none yet, and None for the offset of another source."""
    if offset == "-":
        return -1
    document = _parsed(offset)
    if isinstance(document, dict) and document.keys() == {"logOffset"}:
        return int(document["logOffset"])
    return None


def _batch_of(location: str, entry: str) -> int:
    document = _parsed(entry)
    if not isinstance(document, dict) or not isinstance(document.get("batchId"), int):
        reason = f"the log of a file source has an entry that is not known here: {entry}"
        raise SparkLocationError(location, reason, "Upgrade keyedstate.")
    return int(document["batchId"])


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
