"""Every exception that Ottla raises.
    OttlaError
    ├── ConfigError            a setting is wrong (also a ValueError)
    ├── InputError             data passed to a call is wrong (also a ValueError)
    │   └── RecordTooLarge     a record is larger than the limit
    ├── WireError              bytes are not what they claim to be
    │   ├── CorruptBatch       a record batch is truncated, damaged or malformed: which batch, which byte
    │   └── UnsupportedFormat  a message format or protocol version that Ottla does not support
    ├── NetworkError           a connection or address failed
    │   ├── ConnectFailed      no TCP connection or TLS handshake
    │   │   └── SecurityMismatch   TLS against plaintext, or an untrusted certificate; not retried
    │   ├── AuthenticationFailed   SASL login rejected; not retried
    │   ├── ConnectionLost     the connection ended while responses were outstanding
    │   └── RequestTimedOut    the response was not complete before its deadline
    ├── NoBrokerReachable      every address failed: each with its reason and time
    ├── DeadlineExceeded       a call timed out: what it was doing, and the errors it met
    ├── BrokerError            the broker returned an error code; has the table row, the context and advice
    ├── CommitFailed           offsets were not committed: the group removed this member, or the topic was replaced
    ├── OffsetsLost            records to be read are gone: deleted, truncated, or the topic was replaced
    ├── SpoolError             an operation on the spool on disk failed
    │   ├── SpoolInUse         another program, or another producer of this one, owns the directory
    │   ├── SpoolFailed        a file could not be read, written or trusted: which one and why
    │   └── SpoolFull          its limit in bytes would be exceeded, or its disk is full
    ├── LakeError              an operation on an archive on disk failed
    │   ├── NotALake           the folder is missing or not an archive
    │   ├── LakeConflict       the archive expects other offsets: another archiver was faster, or a range is missing
    │   ├── LakeDamaged        a file cannot be read or contradicts another: which one and why
    │   └── ArchiveIncomplete  some topics could not be archived, the others were: which ones and why
    ├── EngineFailed           Spark could not run tasks or a query
    ├── FleetError             an operation of a fleet failed
    │   ├── StoreUnavailable   its store does not respond
    │   ├── StoreIncompatible  its store has content that this version does not understand
    │   ├── FleetConflict      the group was started with other settings
    │   └── LeaseLost          a unit was given to another node
    ├── MirrorError            a partition, or a link, cannot be mirrored any further: which, and why
    ├── NotDelivered           records were not acknowledged: which, why, and whether they may be in the log
    │   ├── KeptInSpool        they are on disk, and the next producer with that spool delivers them
    │   └── Fenced             another producer with the same transactional id, or a copy of the spool, took over
    ├── BufferFull             the producer's memory stayed full: what it is waiting for
    ├── StreamFailed           a stream of rows ended early: after how many rows, and why
    ├── TransactionFailed      a transaction was used incorrectly or cannot be committed
    ├── UsedAfterFork          a client was created before fork() and used in the child process
    └── LocalClusterError      starting or controlling local brokers failed

Exceptions of other libraries do not leave Ottla: they are the `__cause__` of one of these. `ottla.advice` has what to
do about an error, `ottla.codes` what each error code of a broker means. The names of `ottla.codes` are imported when
first used.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ottla._lazy import lazy
from ottla.advice import Advice, reworded
from ottla.text import printable

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader

    from ottla.codes import ErrorCode, ErrorRow, error_row

__all__ = [
    "Advice",
    "ArchiveIncomplete",
    "Attempt",
    "AuthenticationFailed",
    "BrokerError",
    "BufferFull",
    "CommitFailed",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "CorruptBatch",
    "DeadlineExceeded",
    "EngineFailed",
    "ErrorCode",
    "ErrorRow",
    "Fenced",
    "FleetConflict",
    "FleetError",
    "InputError",
    "KeptInSpool",
    "LakeConflict",
    "LakeDamaged",
    "LakeError",
    "LeaseLost",
    "LocalClusterError",
    "MirrorError",
    "NetworkError",
    "NoBrokerReachable",
    "NotALake",
    "NotDelivered",
    "OffsetsLost",
    "OttlaError",
    "RecordTooLarge",
    "RequestTimedOut",
    "SecurityMismatch",
    "SpoolError",
    "SpoolFailed",
    "SpoolFull",
    "SpoolInUse",
    "StoreIncompatible",
    "StoreUnavailable",
    "StreamFailed",
    "TransactionFailed",
    "UnsupportedFormat",
    "UsedAfterFork",
    "WireError",
    "copied",
    "error_row",
    "reworded",
]


class OttlaError(Exception):
    """The base class of everything that Ottla raises on purpose. Copies and pickles keep all fields.

    Text from outside is always printable: see `ottla.text`.
    """

    accepted: int = 0
    """How many rows of a large list or table were accepted by the call that raised this: always its first rows."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the finished text. Worker processes must be able to raise these.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[OttlaError], args: tuple[Any, ...], fields: dict[str, Any]) -> OttlaError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


E = TypeVar("E", bound=OttlaError)


def copied(error: E) -> E:
    """Return the same error as a new object, for an error that is raised several times.

    Raising the same object again adds frames to its traceback, which keeps them alive.
    """
    duplicate = copy.copy(error)
    duplicate.__cause__ = error.__cause__
    if (notes := getattr(error, "__notes__", None)) is not None:
        duplicate.__notes__ = list(notes)
    return duplicate


class ConfigError(OttlaError, ValueError):
    """A setting is wrong. The text has its name, its value and what is accepted."""


class InputError(OttlaError, ValueError):
    """Data passed to a call is wrong. The text says what and where."""


class RecordTooLarge(InputError):
    """A record is larger than the limit. `size_bytes` and `limit_bytes` have both sizes."""

    def __init__(self, what: str, *, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"{what} takes {size_bytes:,} bytes, the limit is {limit_bytes:,} ({Advice.RECORD_SIZE})")


class WireError(OttlaError):
    """Bytes are not what they claim to be."""


class CorruptBatch(WireError):
    """A record batch is truncated, damaged or malformed.

    `base_offset` is the offset in the batch's header, or None without a whole header. `position` is the byte at which
    reading stopped, from the start of the batch, or of its decompressed records if `in_records` is true. `topic` and
    `partition` are set if known.
    """

    def __init__(
        self,
        reason: str,
        *,
        base_offset: int | None,
        position: int,
        in_records: bool = False,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        self.reason = reason
        self.base_offset = base_offset
        self.position = position
        self.in_records = in_records
        self.topic = topic
        self.partition = partition
        super().__init__(reason)

    def __str__(self) -> str:
        where = f"byte {self.position} of its {'decompressed records' if self.in_records else 'bytes'}"
        batch = "batch without a whole header" if self.base_offset is None else f"batch at offset {self.base_offset}"
        source = f" of {self.topic}-{self.partition}" if self.topic is not None else ""
        return printable(f"corrupt {batch}{source}, {where}: {self.reason}")


class UnsupportedFormat(WireError):
    """A message format or protocol version that Ottla does not support. The text says what would help."""


class NetworkError(OttlaError):
    """A connection or address failed. `address` is `host:port`."""

    def __init__(self, address: object, reason: str) -> None:
        self.address = printable(str(address))
        self.reason = printable(reason)
        super().__init__(f"{self.address}: {self.reason}")


class ConnectFailed(NetworkError):
    """No TCP connection, or no TLS handshake, or the other side does not speak Kafka."""


class SecurityMismatch(ConnectFailed):
    """Both sides disagree about security: TLS against plaintext, or an untrusted certificate. Not retried."""


class AuthenticationFailed(NetworkError):
    """The broker rejected the credentials, or could not prove that it knows them. Not retried."""


class ConnectionLost(NetworkError):
    """The connection ended while responses were outstanding."""


class RequestTimedOut(NetworkError):
    """The response was not complete before the request's deadline. The connection was closed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An address that was tried: why it failed, how long that took, and the number of tries."""

    address: str
    reason: str
    seconds: float
    tries: int = 1

    def __str__(self) -> str:
        times = f", tried {self.tries} times" if self.tries > 1 else ""
        return f"{self.address}: {self.reason} ({self.seconds:.1f} s{times})"


class NoBrokerReachable(OttlaError):
    """Every known address failed. `attempts` has each with its reason and the time spent on it."""

    def __init__(self, attempts: tuple[Attempt, ...], seconds: float, advice: str = "") -> None:
        self.attempts = attempts
        self.seconds = seconds
        self.advice = advice
        lines = "".join(f"\n  {attempt}" for attempt in attempts)
        super().__init__(f"no broker reachable after {seconds:.1f} s:{lines}{_hint(advice)}")


class DeadlineExceeded(OttlaError):
    """A call timed out. `causes` are the errors it met, newest last."""

    def __init__(self, what: str, seconds: float, causes: tuple[str, ...] = (), advice: str = "") -> None:
        self.what = printable(what)
        self.seconds = seconds
        self.causes = tuple(map(printable, causes))
        self.advice = advice
        lines = "".join(f"\n  {cause}" for cause in self.causes)
        super().__init__(
            f"{self.what} did not succeed within {seconds:.1f} s{':' if lines else ''}{lines}{_hint(advice)}"
        )


class SpoolError(OttlaError):
    """An operation on the spool on disk failed."""


class SpoolInUse(SpoolError):
    """Another owner uses the spool directory, which has one at a time. `pid` is None if the owner is unknown."""

    def __init__(self, path: object, *, pid: int | None, host: str | None = None, started: float | None = None) -> None:
        self.path = str(path)
        self.pid = pid
        self.host = host
        self.started = started
        owner = "another process" if pid is None else f"process {pid}" + (f" on {host}" if host else "")
        super().__init__(
            f"spool {self.path} is in use by {owner}"
            + _hint("use a separate spool directory for each producer, or stop the other one first")
        )


class SpoolFailed(SpoolError):
    """A file of the spool could not be read, written or trusted. The store itself remains usable.

    `doubtful` has the tickets of stored entries that may not survive a power loss: store them again.
    """

    def __init__(self, path: object, reason: str, *, doubtful: tuple[Any, ...] = ()) -> None:
        self.path = str(path)
        self.reason = reason
        self.doubtful = doubtful
        many = f"; {len(doubtful)} stored batches are doubtful and must be stored again" if doubtful else ""
        super().__init__(f"spool {self.path}: {reason}{many}")


class SpoolFull(SpoolError):
    """The spool has no space for another batch of `needed_bytes`.

    It would exceed `max_bytes`, or, if that is None, its disk is full.
    """

    def __init__(
        self, path: object, *, used_bytes: int, needed_bytes: int, max_bytes: int | None = None, reason: str = ""
    ) -> None:
        self.path = str(path)
        self.used_bytes = used_bytes
        self.max_bytes = max_bytes
        self.needed_bytes = needed_bytes
        if max_bytes is None:
            detail = f"its disk has no space for {needed_bytes:,} more bytes ({reason}); the spool uses {used_bytes:,}"
            remedy = "free disk space, or bring the brokers back: sending then continues automatically"
        else:
            detail = f"{used_bytes:,} of {max_bytes:,} bytes are used, {needed_bytes:,} more needed"
            remedy = (
                "the brokers are down or slow for longer than the spool can cover: bring them back, or raise max_bytes"
            )
        super().__init__(f"spool {self.path} is full: {detail}" + _hint(remedy))


class LakeError(OttlaError):
    """An operation on an archive on disk failed. `path` is its folder."""

    def __init__(self, path: object, reason: str) -> None:
        self.path = str(path)
        self.reason = reason
        super().__init__(f"archive {self.path}: {reason}")


class NotALake(LakeError):
    """The folder is missing, or is not an archive of Ottla."""


class LakeConflict(LakeError):
    """The new entry does not follow the archive's last offsets. Nothing was recorded."""


class LakeDamaged(LakeError):
    """A file of the archive cannot be read, or contradicts another one."""


class ArchiveIncomplete(LakeError):
    """Some topics could not be archived, the others were. `troubles` has the error of each."""

    def __init__(self, path: object, troubles: Mapping[str, OttlaError]) -> None:
        self.troubles = dict(troubles)
        lines = "".join(f"\n  {topic}: {error}" for topic, error in sorted(self.troubles.items()))
        super().__init__(path, f"these topics were not archived (the others were):{lines}")


class EngineFailed(OttlaError):
    """Spark could not run tasks or a query. The text has the cause as Spark reports it, `__cause__` the full report."""


class FleetError(OttlaError):
    """An operation of a fleet failed. The text says why."""


class StoreUnavailable(FleetError):
    """The store of a fleet does not respond. `store` is its address without the password."""

    def __init__(self, store: str, reason: str) -> None:
        self.store = store
        self.reason = reason
        super().__init__(f"the fleet's store {store} does not answer: {reason}")


class StoreIncompatible(FleetError):
    """The store has content that this version does not understand, or lacks a feature that a fleet needs."""


class FleetConflict(FleetError):
    """The nodes of a group disagree: it was started with other settings."""


class LeaseLost(FleetError):
    """A unit was given to another node because this one seemed to be gone. Its results for the unit are rejected."""


class MirrorError(OttlaError):
    """A partition cannot be mirrored any further, for a reason that no retry changes. `fault` names it.

    `source` and `target` name the partitions.
    """

    def __init__(self, reason: str, *, source: str = "", target: str = "", fault: str = "") -> None:
        self.source = source
        self.target = target
        self.fault = fault
        super().__init__(reason)


_DOUBT = "; they may or may not be in the log"


class NotDelivered(OttlaError):
    """Records were not acknowledged.

    `records` is their number, `cause` the reason. `maybe_written` is true if they were sent but no response came, so
    they may or may not be in the log. `topic` and `partition` are None if there are several.
    """

    def __init__(
        self,
        reason: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        records: int = 1,
        maybe_written: bool = False,
        cause: BaseException | None = None,
    ) -> None:
        self.reason = reason
        self.topic = topic
        self.partition = partition
        self.records = records
        self.maybe_written = maybe_written
        self.cause = cause
        where = "" if topic is None else printable(topic if partition is None else f"{topic}-{partition}")
        suffix = _DOUBT if maybe_written and not reason.endswith(_DOUBT) else ""
        what = f"{records:,} record{'s were' if records != 1 else ' was'} not delivered"
        text = f"{what}: {reason}" if records else reason
        super().__init__(f"{where}{': ' if where else ''}{text}{suffix}")
        self.__cause__ = cause


class KeptInSpool(NotDelivered):
    """The producer was closed before they were acknowledged. The next producer with the same spool delivers them."""


class Fenced(NotDelivered):
    """Another producer has taken over. This one must stop."""


class BufferFull(OttlaError):
    """The producer's memory stayed full for as long as a call may wait. `holding` says what it is waiting for.

    `accepted` is the number of rows of this call that were accepted, from its beginning; 0 except for large tables.
    Every other error of such a call has it, too.
    """

    def __init__(self, *, waiting_bytes: int, limit_bytes: int, seconds: float, holding: str) -> None:
        self.waiting_bytes = waiting_bytes
        self.limit_bytes = limit_bytes
        self.seconds = seconds
        self.holding = holding
        super().__init__(
            f"{waiting_bytes:,} bytes wait to be delivered, the buffer holds {limit_bytes:,}, and no space became free"
            f" within {seconds:.1f} s{_hint(holding)}"
        )


class StreamFailed(OttlaError):
    """A stream that was being sent ended early: reading it raised an error, or its next rows could not be accepted.

    The first `accepted` rows were taken over, and `flush` tells whether they were delivered. `cause` is what stopped
    it. `rest` is a stream of the other rows, None if the stream itself has failed.
    """

    def __init__(self, reason: str, *, accepted: int, cause: Exception, rest: RecordBatchReader | None = None) -> None:
        self.accepted = accepted
        self.cause = cause
        self.rest = rest
        super().__init__(f"the stream stopped after {accepted:,} rows, which were accepted: {reason}")
        self.__cause__ = cause

    def __reduce__(self) -> tuple[Any, ...]:  # a stream stays in its process
        return _restored, (type(self), self.args, {**self.__dict__, "rest": None})


class TransactionFailed(OttlaError):
    """A transaction was used incorrectly, or has failed and can only be aborted."""


class UsedAfterFork(OttlaError):
    """A client created before fork() is used in the child process. Its sockets and locks belong to the parent."""


class LocalClusterError(OttlaError):
    """Starting or controlling local brokers failed. The text says what to do."""


_READ_AGAIN = "the members that now own these partitions read again from the last commit"


class CommitFailed(OttlaError):
    """Offsets were not committed, and a retry would not help.

    `group` removed this member, or the topic was deleted and created again. The members that now own the partitions
    read again from the last commit.
    """

    def __init__(self, group: str, partitions: tuple[str, ...], reason: str, *, outcome: str = _READ_AGAIN) -> None:
        self.group = group
        self.partitions = partitions
        self.reason = reason
        named = printable(", ".join(partitions[:5])) + (f" and {len(partitions) - 5} more" if partitions[5:] else "")
        super().__init__(f"group {printable(group)}: the offsets of {named} were not committed: {reason}; {outcome}")


class OffsetsLost(OttlaError):
    """The records at offsets `[start, stop)` of a partition cannot be read, or are not those that were read before.

    `reason` says why. `resume` is the first offset that can be read now. `replaced` is true if the log belongs to
    another topic with the same name.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        start: int,
        stop: int,
        resume: int,
        reason: str,
        replaced: bool = False,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.stop = stop
        self.resume = resume
        self.reason = reason
        self.replaced = replaced
        super().__init__(
            f"{printable(topic)}-{partition}: offsets [{start}, {stop}) are lost: {reason}; the log can be read from"
            f" offset {resume} ({Advice.ON_LOST})"
        )


class BrokerError(OttlaError):
    """The broker returned an error code. `row` says what it means, `context` what was requested."""

    def __init__(self, code: int, context: str, message: str | None = None) -> None:
        from ottla.codes import error_row

        self.row = error_row(code)
        self.code = self.row.code
        self.context = printable(context)
        self.message = None if message is None else printable(message)
        detail = f": {self.message}" if message else ""
        super().__init__(f"{self.context}: {self.row.name} (error {code}){detail}{_hint(self.row.advice)}")

    @property
    def retriable(self) -> bool:
        """Whether a later retry may succeed."""
        return self.row.retriable


def _hint(advice: str) -> str:
    return f"\n  hint: {advice}" if advice else ""


_HOMES = {"ErrorCode": "ottla.codes", "ErrorRow": "ottla.codes", "error_row": "ottla.codes"}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, _HOMES)
