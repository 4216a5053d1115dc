"""The driver's thread that takes requests to stop a query with a savepoint."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.savepoint.stop_request import StopRequest
from keyedstate.spark.query.stop import stop_with_savepoint

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = logging.getLogger(__name__)

#: Each time it reads one file, mostly missing, for each operator of a running query.
_LOOK_EVERY_S = 2.0


def watch_for_requests(spark: SparkSession, folder: OperatorFolder) -> None:
    """Watch an operator's folder for requests until the session's context ends."""
    context = spark.sparkContext
    with _lock:
        watcher = _watchers.get(context)
        if watcher is None:
            watcher = _watchers[context] = _Watcher(context)
        watcher.folders[folder.storage.uri] = (folder, spark)


class _Watcher:
    """The folders of one context, and the thread that reads requests in them."""

    def __init__(self, context: SparkContext) -> None:
        self.folders: dict[str, tuple[OperatorFolder, SparkSession]] = {}
        self._query_ids: dict[str, str] = {}
        self._context = context
        threading.Thread(target=self._run, name="keyedstate-stop-requests", daemon=True).start()

    def _run(self) -> None:
        while self._context._jsc is not None:
            for folder, session in list(self.folders.values()):
                try:
                    self._look(folder, session)
                except Exception:  # of Spark where it ends meanwhile, or of the storage
                    _log.debug("no request to stop a query could be read", exc_info=True)
            time.sleep(_LOOK_EVERY_S)
        with _lock:
            # It refers to the context, so neither would be freed.
            _watchers.pop(self._context, None)

    def _look(self, folder: OperatorFolder, session: SparkSession) -> None:
        # An operator that `foreachBatch` builds has its own session, without queries.
        sessions = (session, SparkSession._instantiatedSession)
        active = {str(query.id): query for one in sessions if one is not None for query in one.streams.active}
        query = self._query_of(folder, active) if active else None
        if query is not None:
            request = StopRequest.read(folder)
            if request is not None and request.is_open:
                _stop(query, folder, request)

    def _query_of(self, folder: OperatorFolder, active: dict[str, StreamingQuery]) -> StreamingQuery | None:
        """Return the running query of a folder, whose owner is known from the first epoch on."""
        uri = folder.storage.uri
        query = active.get(self._query_ids.get(uri, ""))
        if query is None:
            # Another query may own the folder since.
            owner = folder.read_owner()
            if owner is not None:
                self._query_ids[uri] = owner.query_id
                query = active.get(owner.query_id)
        return query


def _stop(query: StreamingQuery, folder: OperatorFolder, request: StopRequest) -> None:
    with request.taken(folder):
        try:
            _, failure = stop_with_savepoint(query, request.savepoint, drain=request.drain)
            status, answer = "done", "" if failure is None else str(failure)
        except Exception as error:  # the answer to the request
            status, answer = "failed", f"{type(error).__name__}: {error}"
    request.answered(folder, status, answer)


_watchers: WeakKeyDictionary[SparkContext, _Watcher] = WeakKeyDictionary()
_lock = threading.Lock()
