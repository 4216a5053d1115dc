"""Every option of the framework: its name, type, default and text.

A plugin declares its own options in its description (`BackendDescription.options`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from keyedstate.config import ConfigOption, Settings, boolean, choice, duration, integer, string
from keyedstate.memory import DEFAULT_MANAGED_BYTES, DEFAULT_WEIGHTS, ProcessMemory, process_memory


def names(name: str, text: str) -> ConfigOption[tuple[str, ...]]:
    """Return an option whose value is a list of names; a string has commas between them."""

    def parse(value: object) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, Iterable):
            raise ValueError
        found = tuple(parts)
        if not all(isinstance(part, str) for part in found):
            raise ValueError
        return tuple(part.strip() for part in found if part.strip())

    return ConfigOption(name, parse, (), "a list of names with commas between them", text)


def pairs(name: str, text: str) -> ConfigOption[tuple[tuple[str, str], ...]]:
    """Return an option whose value is a mapping of names, or a string such as ``a=1,b=2``."""

    def parse(value: object) -> tuple[tuple[str, str], ...]:
        if isinstance(value, str):
            # A part without "=" cannot be unpacked below, which is a ValueError.
            value = [part.split("=", 1) for part in value.split(",") if part.strip()]
        items = value.items() if isinstance(value, Mapping) else cast(Iterable[Any], value)
        found = tuple((str(key).strip(), str(text).strip()) for key, text in items)
        if not all(key for key, _ in found) or len(dict(found)) < len(found):
            raise ValueError
        return found

    return ConfigOption(name, parse, (), "pairs such as name=value, with commas between them", text)


def ports(name: str, text: str) -> ConfigOption[str]:
    """Return an option whose value is a port or a range with both ends included; 0 is any free port."""

    def parse(value: object) -> str:
        first, _, last = str(value).partition("-")
        low, high = int(first), int(last or first)
        if not (low == high == 0 or 1 <= low <= high <= 65_535):
            raise ValueError
        return str(value)

    return ConfigOption(name, parse, "0", "0, a port, or two with a dash such as 40000-40099", text)


def weights(name: str, default: Mapping[str, int], text: str) -> ConfigOption[tuple[tuple[str, int], ...]]:
    """Return an option whose value is a weight for each of some names, those of its default."""
    as_pairs = pairs(name, text).parse

    def parse(value: object) -> tuple[tuple[str, int], ...]:
        given = {key: int(weight) for key, weight in as_pairs(value)}
        found = {**default, **given}
        if found.keys() != default.keys() or min(found.values()) < 0 or not any(found.values()):
            raise ValueError
        return tuple(found.items())

    example = ",".join(f"{key}={weight}" for key, weight in default.items())
    expected = f"whole numbers such as {example}, not all of them 0"
    return ConfigOption(name, parse, tuple(default.items()), expected, text)


BACKEND = string(
    "backend",
    "heap-cow",
    "Name of the state backend, as in `keyedstate plugins list`.",
    "the name of an installed backend",
)
PLUGINS_ALLOW = names(
    "plugins.allow", "The only backends that may be used, by name or distribution; empty allows all."
)
PLUGINS_DENY = names("plugins.deny", "Backends that may not be used, by name or distribution.")
PLUGINS_PREFER = names(
    "plugins.prefer", "Distributions that win where two provide a backend of the same name."
)
PLUGINS_MODULES = names(
    "plugins.modules",
    "Importable modules with hook implementations that are registered in addition to the installed plugins, "
    "on the driver and in every task.",
)
PARALLELISM = integer(
    "parallelism",
    None,
    "Number of tasks of a keyed operator; by default the value of spark.sql.shuffle.partitions.",
    low=1,
    high=32_768,
)
MAX_PARALLELISM = integer(
    "max-parallelism",
    None,
    "Number of key groups: the limit of every later rescaling, fixed by the first epoch. By default one and "
    "a half times the parallelism, rounded up to a power of two, between 128 and 32768.",
    low=1,
    high=32_768,
)
CHECKPOINT_DIR = string(
    "checkpoint.dir",
    None,
    "Folder or URI under which each operator keeps its checkpoints; driver and executors must both reach it.",
    "a path or a URI such as s3://bucket/folder",
)
CHECKPOINT_RETAINED = integer(
    "checkpoint.retained",
    2,
    "Completed checkpoints kept per operator. At least two: Spark may run the newest epoch again, and that "
    "starts from the one before.",
    low=2,
)
CHECKPOINT_TIMEOUT = duration(
    "checkpoint.timeout",
    600_000,
    "How long the driver waits from the first acknowledgement of an epoch for the last one, before it "
    "reports the checkpoint as aborted and names the missing ones. If they all arrive later, the driver "
    "publishes the checkpoint, since Spark commits the epoch. A run without Spark whose tasks are processes "
    "ends with an error if they have not all finished an epoch so long after its barriers were sent.",
    low_ms=10,
)
CHECKPOINT_INTERVAL = duration(
    "checkpoint.interval",
    10_000,
    "How long a run without Spark processes rows between two checkpoints; 0 checkpoints after each batch of "
    "rows. On Spark each micro-batch has a checkpoint.",
)
#: Values of `CHECKPOINT_MODE`.
EXACTLY_ONCE, AT_LEAST_ONCE, UNALIGNED = "exactly-once", "at-least-once", "unaligned"
CHECKPOINT_MODE = choice(
    "checkpoint.mode",
    EXACTLY_ONCE,
    (EXACTLY_ONCE, AT_LEAST_ONCE, UNALIGNED),
    "What a run without Spark guarantees after a failure, where it has several tasks. `exactly-once`: a task "
    "aligns the barriers of its channels, so that each row counts once in the state. `at-least-once`: a task "
    "processes rows behind a barrier while it waits for others; after a failure these rows count twice. "
    "`unaligned`: exactly-once, but barriers overtake rows, which become part of the checkpoint.",
)
CHECKPOINT_ALIGNMENT_TIMEOUT = duration(
    "checkpoint.alignment-timeout",
    0,
    "How long a checkpoint of the mode `unaligned` stays aligned before its barriers overtake rows.",
)
CHECKPOINT_PERMISSIONS = choice(
    "checkpoint.permissions",
    "owner",
    ("owner", "group", "umask"),
    "Who may use new files and folders of checkpoints and savepoints on a local disk. `owner`: their user "
    "(0600, 0700). `group`: their group too (0660, 0770). `umask`: as the umask of the process says.",
)
CHECKPOINT_COMPRESSION = choice(
    "checkpoint.compression",
    "zstd",
    ("zstd", "lz4", "none"),
    "Compression inside segment files, of streams with columns of at least 4 KiB.",
)
CHECKPOINT_MAX_DELTAS = integer(
    "checkpoint.max-deltas",
    10,
    "Deltas on one full snapshot: epochs in a row that write only what they changed. A task also writes a "
    "full snapshot when its deltas are half as large, and when a type or the parallelism changed. 0 writes a "
    "full snapshot in every epoch.",
    low=0,
)
CHECKPOINT_DELTA_MIN_BYTES = integer(
    "checkpoint.delta-min-bytes",
    1 << 20,
    "A task whose state is smaller than this many bytes always writes a full snapshot: one file more to "
    "read would cost more than it saves.",
    low=0,
)
CHECKPOINT_FULL_SNAPSHOT_MIN_PAUSE = duration(
    "checkpoint.full-snapshot-min-pause",
    0,
    "How long a task waits between two full snapshots. A chain of deltas three times as long or as large as "
    "it should be is not put off.",
)
CHECKPOINT_MAX_CONCURRENT_FULL_SNAPSHOTS = integer(
    "checkpoint.max-concurrent-full-snapshots",
    0,
    "How many tasks of an operator may begin a full snapshot in the same epoch, those with the longest "
    "chains of deltas first; 0 sets no limit.",
    low=0,
)
CHECKPOINT_FULL_SNAPSHOT_TIMEOUT = duration(
    "checkpoint.full-snapshot-timeout",
    600_000,
    "How long a full snapshot may take in the background; then it is aborted, which counts as a failure.",
    low_ms=10,
)
CHECKPOINT_TOLERABLE_FAILURES = integer(
    "checkpoint.tolerable-failures",
    3,
    "How many full snapshots in a row may fail in the background. Nothing is lost, since the deltas are "
    "written all the same; one failure more stops the query.",
    low=0,
)
CHECKPOINT_LOCAL_COPIES = choice(
    "checkpoint.local-copies",
    "off",
    ("off", "on"),
    "Whether a task keeps a copy of its checkpoint files on the disk of its machine and restores from it if "
    "possible, instead of fetching the files from the storage. It takes as much room as the state.",
)
CHECKPOINT_LOCAL_COPIES_DIR = string(
    "checkpoint.local-copies-dir",
    None,
    "Folder of the local copies on each machine; by default below Spark's local folder, which is deleted "
    "with the application.",
    "a path",
)
STORAGE_OPTIONS = pairs(
    "storage.options",
    "Options for the plugin that opens the scheme of the checkpoint's URI (hook "
    "keyedstate_checkpoint_storage). The file systems of pyarrow take theirs from the URI.",
)
STORAGE_RETRIES = integer(
    "storage.retries",
    5,
    "How often a request to the checkpoint's storage is sent again after a transient error: a timeout, "
    "throttling, a broken connection, an error of the server.",
    low=0,
    high=1000,
)
STORAGE_RETRY_DELAY = duration(
    "storage.retry-delay",
    200,
    "How long a task waits before it sends such a request again for the first time; doubled each time, up to "
    "20 seconds, and shortened at random by up to a half.",
)
RESTORE_SAVEPOINT = string(
    "restore.savepoint",
    None,
    "The savepoint that a new query starts from, in its epoch 0 only, also when Spark runs epoch 0 again. "
    "Keyed operators on batch DataFrames always start without state.",
    "a path or a URI such as s3://bucket/savepoint",
)
RESTORE_CLAIM_MODE = choice(
    "restore.claim-mode",
    "no-claim",
    ("no-claim", "claim"),
    "Who owns the savepoint that a query starts from. With `no-claim` the user owns it, and it is never "
    "changed. With `claim` the query owns it and deletes it after Spark has committed epoch 0.",
)
RESTORE_ALLOW_UNCLAIMED = boolean(
    "restore.allow-unclaimed",
    False,
    "Whether a query may start from a savepoint that has state of operators which the query does not have; "
    "that state is not restored.",
)
RESTORE_ALLOW_NEW = boolean(
    "restore.allow-new",
    False,
    "Whether operators that the savepoint does not have may start without state.",
)
HOST = choice(
    "host",
    "resident",
    ("resident", "embedded"),
    "Where streaming queries run their keyed epochs. `resident`: in hosts, state server processes on the "
    "executors that keep state from one epoch to the next. `embedded`: in the tasks themselves, which "
    "restore it in each epoch.",
)
HOSTS_PROCESSES = integer(
    "hosts.processes",
    None,
    "Hosts of each executor; by default as many as it has cores. Partition p is on host p modulo this.",
    low=1,
    high=10_000,
)
HOSTS_IDLE_TIME = duration(
    "hosts.idle-time",
    600_000,
    "How long a host without a task runs, and how long it keeps a partition that no task has asked for.",
    low_ms=100,
)
HOSTS_MEMORY = integer(
    "hosts.memory",
    0,
    "How many bytes of memory a host may use. One that uses more fails its task with an error that names "
    "this option, and a new host replaces it. 0 sets no limit.",
    low=0,
)
HOSTS_EPOCH_TIMEOUT = duration(
    "hosts.epoch-timeout",
    0,
    "How long an epoch of one partition may take in a host, before the host is killed and the attempt fails: "
    "for functions that may hang. 0 sets no limit.",
)
HOSTS_TCP = choice(
    "hosts.tcp",
    "auto",
    ("auto", "on", "off"),
    "Whether a task uses the host of another executor that keeps its partition, over TCP. `auto`: on a "
    "cluster, unless Spark encrypts its own traffic and there is no `hosts.tls-certificate`. Without it such "
    "a task restores its partition from files.",
)
HOSTS_BIND_ADDRESS = string(
    "hosts.bind-address",
    None,
    "Address at which hosts listen for other executors; by default the one under which they are reached.",
    "an address of every executor, such as 0.0.0.0",
)
HOSTS_ADVERTISED_ADDRESS = string(
    "hosts.advertised-address",
    None,
    "Address under which other executors reach the hosts of an executor; by default its SPARK_LOCAL_IP, its "
    "address as a pod, or that from which it reaches the driver.",
    "the name of an environment variable of the executors with a $ before it, or an address",
)
HOSTS_PORTS = ports("hosts.ports", "Ports at which hosts listen for other executors; 0 for any free one.")
HOSTS_CONNECT_TIMEOUT = duration(
    "hosts.connect-timeout",
    5_000,
    "How long the host of another executor may take to answer before the task restores the partition from "
    "files, and how long a client may take to authenticate itself.",
    low_ms=100,
)
HOSTS_TLS_CERTIFICATE = string(
    "hosts.tls-certificate",
    None,
    "Certificate of an executor, as a PEM file on its machine. With it and the two options below, traffic "
    "between executors is encrypted, and both sides present a certificate.",
    "a path on every executor",
)
HOSTS_TLS_KEY = string(
    "hosts.tls-key", None, "Key of that certificate, without a password.", "a path on every executor"
)
HOSTS_TLS_CA = string(
    "hosts.tls-ca",
    None,
    "Certificates of the authorities that sign those of executors.",
    "a path on every executor",
)
MEMORY_MANAGED_SIZE = integer(
    "memory.managed-size",
    DEFAULT_MANAGED_BYTES,
    "Bytes of managed memory of each process that runs partitions: what RocksDB, spilled entries and sorters "
    "may have together. It is taken when it is needed. A process keeps the value of its first operator.",
    low=1 << 20,
)
MEMORY_WEIGHTS = weights(
    "memory.weights",
    DEFAULT_WEIGHTS,
    "How the managed memory is divided: among the caches and buffers of the state backend, those of spilled "
    "entries, and sorters. One that is not named keeps its default.",
)
METRICS_OPTIONS = pairs(
    "metrics.options",
    "Options for plugins that report metrics (hook keyedstate_metric_reporter): names and values that they "
    "define.",
)
METRICS_LATENCY = boolean(
    "metrics.latency",
    False,
    "Whether the latency of accesses to states is sampled.",
)
METRICS_LATENCY_INTERVAL = integer(
    "metrics.latency-interval",
    100,
    "One of so many calls of an operation of a state is measured.",
    low=1,
)
METRICS_LATENCY_HISTORY = integer(
    "metrics.latency-history",
    128,
    "How many samples, the newest ones, each task keeps of an operation of a state.",
    low=1,
    high=10_000,
)
METRICS_LATENCY_STATE_NAMES = boolean(
    "metrics.latency-state-names",
    True,
    "Whether each state has samples of its own; otherwise all states of a kind share them.",
)
TYPES_GENERIC = choice(
    "types.generic",
    "allow",
    ("allow", "forbid"),
    "Whether states may have generic types, whose values are pickled: slow, readable by Python alone, and "
    "without evolution. `forbid` refuses to register such a state.",
)
TIMERS_QUEUE = choice(
    "timers.queue",
    "auto",
    ("auto", "heap", "ordered"),
    "Where the order of timers is kept. `heap`: in memory, 200 to 500 bytes each. `ordered`: by the backend.",
)

CLOCK_MAX_SKEW = duration(
    "clock.max-skew",
    60_000,
    "How far the clock of a task's machine may differ from that of the checkpoints' storage, and how far the "
    "processing time of the last epoch may be ahead of both. Beyond that, the time of the storage counts.",
)

WATERMARK_MAX_DRIFT = duration(
    "watermark.max-drift",
    0,
    "How far a channel of a source may be ahead of the slowest one in event time, in a run without Spark. A "
    "channel that is further ahead is not read until the others have caught up. 0 sets no limit.",
)

DROP_IN = boolean(
    "drop-in",
    False,
    "Whether Spark's `transformWithState` and `transformWithStateInPandas` run on keyedstate, where the "
    "program imports `keyedstate.spark.drop_in` and neither enables nor disables it.",
)

#: The options of the framework: all above.
OPTIONS: tuple[ConfigOption[Any], ...] = tuple(
    option for option in list(globals().values()) if isinstance(option, ConfigOption)
)


class Configuration(Settings):
    """The options of the framework and of its plugins that were set, and where; `Settings` describes it."""

    declared = OPTIONS


def managed_memory(config: Configuration) -> ProcessMemory:
    """Return the managed memory of this process; the first call divides it as the options say."""
    return process_memory(config[MEMORY_MANAGED_SIZE], dict(config[MEMORY_WEIGHTS]))
