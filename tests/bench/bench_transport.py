"""The hosts' frames against Arrow Flight: the same batches to another process and back.

    python tests/bench/bench_transport.py [--epochs N] [--rows N] [--rounds N]

- small epoch: a new connection, one batch of 100 rows there and back, as a task of a micro-batch does;
- rows: one connection, batches of 10,000 rows there and back at once;
- import: what a worker pays before its first connection, in a new process;
- fork: whether a process that has used the transport can be forked and the child use it as well, since
  Spark's daemon forks its workers.

Unix sockets on both sides, and TCP with the host's challenge and seals against Flight with a token.  Rounds
alternate between the two; the table has medians and ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pyarrow as pa

from keyedstate.checkpoint.format.manifest import HostAddress
from keyedstate.spark.hosts.network.handshake import Session, prove_host, prove_task
from keyedstate.spark.hosts.network.protocol import (
    BatchDecoder,
    BatchEncoder,
    FrameReader,
    FrameType,
    frame,
)

ROWS = {FrameType.SCHEMA, FrameType.BATCH, FrameType.END}
SECRET = secrets.token_bytes(32)
TOKEN = secrets.token_hex(32)


def batches(rows: int, each: int) -> list[pa.RecordBatch]:
    """Return batches of a string, two numbers and a time."""
    columns = {
        "key": pa.array([f"customer-{number:08}" for number in range(each)]),
        "number": pa.array(range(each), pa.int64()),
        "amount": pa.array([number / 7 for number in range(each)]),
        "time": pa.array(range(each), pa.timestamp("ms")),
    }
    return [pa.RecordBatch.from_pydict(columns)] * max(1, rows // each)


# -- frames ----------------------------------------------------------------------------------------


NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _send_all(connection: socket.socket, rows: Iterable[pa.RecordBatch], session: Session | None) -> None:
    encoder = BatchEncoder()
    for pieces in chain(chain.from_iterable(map(encoder.frames, rows)), [frame(FrameType.END)]):
        for piece in pieces if session is None else session.sealed(pieces):
            connection.sendall(piece)


def _receive_all(connection: socket.socket, session: Session | None) -> Iterator[pa.RecordBatch]:
    reader = FrameReader(connection, ROWS, None if session is None else session.received)
    decoder = BatchDecoder()
    while True:
        received = reader.read()
        assert received is not None
        if received.type is FrameType.END:
            return
        batch = decoder.batch(received)
        if batch is not None:
            yield batch


def _echo(connection: socket.socket, address: HostAddress | None) -> None:
    with connection:
        session = None
        if address is not None:
            connection.setsockopt(*NODELAY)
            session = prove_host(connection, lambda _: SECRET, address, time.monotonic() + 10)
            connection.settimeout(None)
        _send_all(connection, _receive_all(connection, session), session)


def serve_frames(kind: str, place: str, ready: Any) -> None:
    """Echo what comes, in a thread for each connection."""
    listener = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
    listener.bind(place if kind == "unix" else ("127.0.0.1", 0))
    listener.listen()
    port = 0 if kind == "unix" else listener.getsockname()[1]
    address = None if kind == "unix" else HostAddress("executor", "127.0.0.1", port)
    ready.send(port)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_echo, args=(connection, address), daemon=True).start()


def exchange_frames(kind: str, place: str, port: int, rows: list[pa.RecordBatch]) -> int:
    """Send all rows over a new connection and return how many came back."""
    with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as connection:
        connection.connect(place if kind == "unix" else ("127.0.0.1", port))
        session = None
        if kind != "unix":
            connection.setsockopt(*NODELAY)
            address = HostAddress("executor", "127.0.0.1", port)
            session = prove_task(connection, SECRET, address, time.monotonic() + 10)
            connection.settimeout(None)
        sender = threading.Thread(target=_send_all, args=(connection, rows, session))
        sender.start()
        received = sum(batch.num_rows for batch in _receive_all(connection, session))
        sender.join()
        return received


# -- Flight ----------------------------------------------------------------------------------------


def serve_flight(kind: str, place: str, ready: Any) -> None:
    """Echo what comes."""
    import pyarrow.flight as fl

    class Check(fl.ServerAuthHandler):  # type: ignore[misc]
        def authenticate(self, outgoing: Any, incoming: Any) -> None:
            if incoming.read() != TOKEN.encode():
                raise fl.FlightUnauthenticatedError("wrong token")
            outgoing.write(b"session")

        def is_valid(self, token: bytes) -> bytes:
            return b"task"

    class Echo(fl.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            began = False
            for chunk in reader:
                if not began:
                    writer.begin(chunk.data.schema)
                    began = True
                writer.write_batch(chunk.data)

    uri = f"grpc+unix://{place}" if kind == "unix" else "grpc://127.0.0.1:0"
    server = Echo(uri, auth_handler=None if kind == "unix" else Check())
    ready.send(server.port)
    server.serve()


def exchange_flight(kind: str, place: str, port: int, rows: list[pa.RecordBatch]) -> int:
    """Send all rows over a new connection and return how many came back."""
    import pyarrow.flight as fl

    class Tell(fl.ClientAuthHandler):  # type: ignore[misc]
        def authenticate(self, outgoing: Any, incoming: Any) -> None:
            outgoing.write(TOKEN.encode())
            self.token = incoming.read()

        def get_token(self) -> bytes:
            return bytes(self.token)

    uri = f"grpc+unix://{place}" if kind == "unix" else f"grpc://127.0.0.1:{port}"
    # Without it, clients of one address share a connection, and it is no new one.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with fl.FlightClient(uri, generic_options=options) as client:
        if kind != "unix":
            client.authenticate(Tell())
        writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(b"epoch"))

        def send() -> None:
            writer.begin(rows[0].schema)
            for batch in rows:
                writer.write_batch(batch)
            writer.done_writing()

        sender = threading.Thread(target=send)
        sender.start()
        received = sum(chunk.data.num_rows for chunk in reader)
        sender.join()
        writer.close()
        return received


# -- measuring -------------------------------------------------------------------------------------

TRANSPORTS = {"frames": (serve_frames, exchange_frames), "flight": (serve_flight, exchange_flight)}


@contextmanager
def serving(name: str, kind: str) -> Iterator[Callable[[list[pa.RecordBatch]], int]]:
    """Have a server in a process of its own, and give what exchanges rows with it."""
    serve, exchange = TRANSPORTS[name]
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "socket")
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=serve, args=(kind, place, there))
        process.start()
        port = here.recv()
        try:
            yield lambda rows: exchange(kind, place, port, rows)
        finally:
            process.kill()
            process.join()


def survives_fork(name: str) -> str:
    """Return what becomes of a child that exchanges rows after its parent did."""
    rows = batches(100, 100)
    with serving(name, "unix") as exchange:
        exchange(rows)
        child = os.fork()
        if child == 0:
            os._exit(0 if exchange(rows) == 100 else 1)
        due = time.monotonic() + 10.0
        while time.monotonic() < due:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return "works" if status == 0 else f"ends with {status}"
            time.sleep(0.05)
        os.kill(child, 9)
        os.waitpid(child, 0)
        return "hangs"


def import_ms(code: str) -> float:
    """Return the median milliseconds that a new process needs for an import beyond pyarrow's own."""
    program = f"import pyarrow, time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
    times = [float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(5)]
    return 1000 * statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=100, help="small epochs of a round")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    small, large = batches(100, 100), batches(arguments.rows, 10_000)
    print("| | frames | flight | flight / frames |\n|---|---|---|---|")
    # Servers are forked, so before this process has used Flight.
    for kind in ("unix", "tcp, authenticated"):
        times: dict[tuple[str, str], list[float]] = {}
        with serving("frames", kind) as frames, serving("flight", kind) as flight:
            for _ in range(arguments.rounds):
                for name, exchange in (("frames", frames), ("flight", flight)):
                    began = time.perf_counter()
                    for _ in range(arguments.epochs):
                        exchange(small)
                    times.setdefault(("small", name), []).append(time.perf_counter() - began)
                    began = time.perf_counter()
                    exchange(large)
                    times.setdefault(("large", name), []).append(time.perf_counter() - began)
        medians = {measured: statistics.median(found) for measured, found in times.items()}
        for what, unit, scale in (
            ("small", "ms for a small epoch", 1000 / arguments.epochs),
            ("large", "s for the rows", 1.0),
        ):
            ours, theirs = (medians[what, name] * scale for name in ("frames", "flight"))
            print(f"| {kind}, {unit} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.1f} |")
    ours = import_ms("import keyedstate.spark.hosts.network.protocol")
    theirs = import_ms("import pyarrow.flight")
    print(f"| import, ms | {ours:.0f} | {theirs:.0f} | {theirs / ours:.1f} |")
    print(f"| after a fork | {survives_fork('frames')} | {survives_fork('flight')} | |")


if __name__ == "__main__":
    main()
