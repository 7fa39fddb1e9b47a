"""Every exception that Ottla raises.

    OttlaError
    ├── ConfigError            a setting is wrong (also a ValueError)
    ├── InputError             data handed to a call is wrong (also a ValueError)
    ├── WireError              bytes are not what they claim to be
    │   ├── CorruptBatch       a record batch is truncated, damaged or hostile: which batch, which position
    │   └── UnsupportedFormat  a message format or protocol version that Ottla does not speak
    ├── NetworkError           one connection or address failed
    │   ├── ConnectFailed      no TCP connection or TLS handshake
    │   │   └── SecurityMismatch   TLS against plaintext, or a certificate that is not trusted; not retried
    │   ├── AuthenticationFailed   SASL refused; another attempt would be refused too
    │   ├── ConnectionLost     the connection ended while answers were due
    │   └── RequestTimedOut    the answer was not complete before its deadline
    ├── NoBrokerReachable      every address failed: each with its reason and time
    ├── DeadlineExceeded       a call ran out of time: what it waited for and what went wrong meanwhile
    ├── BrokerError            the broker answered with an error code; carries the row, the context and advice
    ├── CommitFailed           offsets were not committed: the group moved on, or has no such member
    ├── OffsetsLost            records that were to be read are gone: cut off, replaced, or of a topic that is gone
    ├── SpoolError             the spool on disk cannot do what was asked
    │   ├── SpoolInUse         another program, or another producer of this one, owns the directory
    │   ├── SpoolFailed        a file of it could not be read, written or trusted: which one and why
    │   └── SpoolFull          its limit in bytes would be exceeded, or its disk is full
    ├── LakeError              an archive on disk cannot do what was asked
    │   ├── NotALake           a folder that holds something else, or nothing
    │   ├── LakeConflict       other offsets are due: another archiver was faster, or a range was left out
    │   ├── LakeDamaged        a file of it cannot be read or contradicts another: which one and why
    │   └── ArchiveIncomplete  some topics could not be archived, the others were: which ones and why
    ├── EngineFailed           Spark could not run tasks or a query
    ├── FleetError             a fleet cannot do what was asked
    │   ├── StoreUnavailable   its store does not answer
    │   ├── StoreIncompatible  its store has something that this version does not understand
    │   ├── FleetConflict      the group was begun with other settings
    │   └── LeaseLost          a unit was given to another node
    ├── NotDelivered           records were not acknowledged; says which, why, and whether they may be in the log
    │   ├── KeptInSpool        they are on disk, and the next producer on that spool delivers them
    │   └── Fenced             another producer with the same transactional id, or a copy of the spool, took over
    ├── BufferFull             the producer's memory stayed full; says what holds things up
    ├── TransactionFailed      a transaction was used wrongly or cannot be committed
    ├── UsedAfterFork          a client was made before fork() and used in the child
    └── LocalClusterError      starting or controlling local brokers failed

Exceptions of other libraries do not cross Ottla's surface; they are the `__cause__` of one of these.
What to do about an error is in `ottla.advice`, what each error code of a broker means in `ottla.codes`; the names of
the latter are imported when they are first used.
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
    "UnsupportedFormat",
    "UsedAfterFork",
    "WireError",
    "copied",
    "error_row",
    "reworded",
]


class OttlaError(Exception):
    """The root of everything that Ottla raises on purpose. Copies and pickles keep all fields.

    Texts from outside are printable in all of them: see `ottla.text`.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with the finished text; workers in other processes must be able to raise these.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[OttlaError], args: tuple[Any, ...], fields: dict[str, Any]) -> OttlaError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


E = TypeVar("E", bound=OttlaError)


def copied(error: E) -> E:
    """The same error as a new object, for what is raised again and again.

    Raising an object adds the frames to the traceback that it has already, which then keeps them alive, too.
    """
    copy_of = copy.copy(error)
    copy_of.__cause__ = error.__cause__
    if (notes := getattr(error, "__notes__", None)) is not None:
        copy_of.__notes__ = list(notes)
    return copy_of


class ConfigError(OttlaError, ValueError):
    """A setting is wrong; the text names it, its value and what is accepted."""


class InputError(OttlaError, ValueError):
    """Data handed to a call is wrong; the text names what and where."""


class RecordTooLarge(InputError):
    """A record is larger than the limit; `size_bytes` and `limit_bytes` have both sizes."""

    def __init__(self, what: str, *, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(f"{what} takes {size_bytes:,} bytes, the limit is {limit_bytes:,} ({Advice.RECORD_SIZE})")


class WireError(OttlaError):
    """Bytes are not what they claim to be."""


class CorruptBatch(WireError):
    """A record batch is truncated, damaged or hostile.

    `base_offset` is the offset in the batch's header (None when there is no whole header), `position` the byte at
    which reading stopped, counted from the start of the batch, or of its records once they are decompressed if
    `in_records` is true. `topic` and `partition` are set where they are known.
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
    """A message format or protocol version that Ottla does not speak; the text says what would help."""


class NetworkError(OttlaError):
    """One connection or address failed. `address` is `host:port`."""

    def __init__(self, address: object, reason: str) -> None:
        self.address = printable(str(address))
        self.reason = printable(reason)
        super().__init__(f"{self.address}: {self.reason}")


class ConnectFailed(NetworkError):
    """No TCP connection, or no TLS handshake, or the other side does not speak Kafka."""


class SecurityMismatch(ConnectFailed):
    """The two sides do not agree on protection: TLS against plaintext, an untrusted certificate; not retried."""


class AuthenticationFailed(NetworkError):
    """The broker refused the credentials, or could not prove that it knows them; not retried."""


class ConnectionLost(NetworkError):
    """The connection ended while answers were still due."""


class RequestTimedOut(NetworkError):
    """The answer was not complete before the request's deadline; the connection was closed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One address that was tried: why it failed and how long that took, over how many tries."""

    address: str
    reason: str
    seconds: float
    tries: int = 1

    def __str__(self) -> str:
        times = f", tried {self.tries} times" if self.tries > 1 else ""
        return f"{self.address}: {self.reason} ({self.seconds:.1f} s{times})"


class NoBrokerReachable(OttlaError):
    """Every known address failed; `attempts` has each with its reason and the time spent on it."""

    def __init__(self, attempts: tuple[Attempt, ...], seconds: float, advice: str = "") -> None:
        self.attempts = attempts
        self.seconds = seconds
        self.advice = advice
        lines = "".join(f"\n  {attempt}" for attempt in attempts)
        super().__init__(f"no broker reachable after {seconds:.1f} s:{lines}{_hint(advice)}")


class DeadlineExceeded(OttlaError):
    """A call ran out of time. `causes` are the errors it met on the way, newest last."""

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
    """The spool on disk cannot do what was asked."""


class SpoolInUse(SpoolError):
    """A spool directory has one owner at a time, and it is not this one. `pid` is None if the owner is not known."""

    def __init__(self, path: object, *, pid: int | None, host: str | None = None, started: float | None = None) -> None:
        self.path = str(path)
        self.pid = pid
        self.host = host
        self.started = started
        who = "another process" if pid is None else f"process {pid}" + (f" on {host}" if host else "")
        super().__init__(
            f"spool {self.path} is in use by {who}"
            + _hint("give each producer a spool directory of its own, or end the other one first")
        )


class SpoolFailed(SpoolError):
    """A file of the spool could not be read, written or trusted. The store itself can be used further.

    `doubtful` has the tickets of entries that may not survive a power loss although they were put: put them again.
    """

    def __init__(self, path: object, reason: str, *, doubtful: tuple[Any, ...] = ()) -> None:
        self.path = str(path)
        self.reason = reason
        self.doubtful = doubtful
        many = f"; {len(doubtful)} stored batches are doubtful and must be stored again" if doubtful else ""
        super().__init__(f"spool {self.path}: {reason}{many}")


class SpoolFull(SpoolError):
    """There is no room for another batch of `needed_bytes`: the spool would exceed `max_bytes`, or, when that is None,
    its disk is full."""

    def __init__(
        self, path: object, *, used_bytes: int, needed_bytes: int, max_bytes: int | None = None, reason: str = ""
    ) -> None:
        self.path = str(path)
        self.used_bytes = used_bytes
        self.max_bytes = max_bytes
        self.needed_bytes = needed_bytes
        if max_bytes is None:
            why = f"its disk has no room for {needed_bytes:,} more bytes ({reason}), {used_bytes:,} are the spool's"
            what = "make room on the disk, or bring brokers back: it goes on by itself"
        else:
            why = f"{used_bytes:,} of {max_bytes:,} bytes are used, {needed_bytes:,} more needed"
            what = "brokers are away or slow for longer than the spool can cover: bring them back, or raise max_bytes"
        super().__init__(f"spool {self.path} is full: {why}" + _hint(what))


class LakeError(OttlaError):
    """An archive on disk cannot do what was asked. `path` is its folder."""

    def __init__(self, path: object, reason: str) -> None:
        self.path = str(path)
        self.reason = reason
        super().__init__(f"archive {self.path}: {reason}")


class NotALake(LakeError):
    """The folder is missing, or holds something that no archive of Ottla is."""


class LakeConflict(LakeError):
    """What was to be recorded does not follow what the archive has; nothing was recorded."""


class LakeDamaged(LakeError):
    """A file of the archive cannot be read, or contradicts another one."""


class ArchiveIncomplete(LakeError):
    """Some of several topics could not be archived; all that could be is. `troubles` has the error of each."""

    def __init__(self, path: object, troubles: Mapping[str, OttlaError]) -> None:
        self.troubles = dict(troubles)
        lines = "".join(f"\n  {topic}: {error}" for topic, error in sorted(self.troubles.items()))
        super().__init__(path, f"not archived, the other topics are:{lines}")


class EngineFailed(OttlaError):
    """Spark could not run tasks or a query; the text is what it says of the cause, the whole report is the cause."""


class FleetError(OttlaError):
    """A fleet cannot do what was asked; the text says what is in the way."""


class StoreUnavailable(FleetError):
    """The store of a fleet does not answer. `store` is its address without the password."""

    def __init__(self, store: str, reason: str) -> None:
        self.store = store
        self.reason = reason
        super().__init__(f"the fleet's store {store} does not answer: {reason}")


class StoreIncompatible(FleetError):
    """The store holds something that this version does not understand, or cannot do what a fleet needs."""


class FleetConflict(FleetError):
    """The nodes of a group do not agree: it was begun with other settings."""


class LeaseLost(FleetError):
    """A unit was given to another node, because this one seemed to be gone. What it says of the unit does not count."""


class NotDelivered(OttlaError):
    """Records were not acknowledged.

    `records` says how many, `cause` why; `maybe_written` is true when they were sent and no answer came, so that they
    may be in the log or not. `topic` and `partition` are None when it is about several.
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
        doubt = "; they may be in the log or not" if maybe_written else ""
        what = f"{records:,} record{'s were' if records != 1 else ' was'} not delivered"
        told = f"{what}: {reason}" if records else reason
        super().__init__(f"{where}{': ' if where else ''}{told}{doubt}")
        self.__cause__ = cause


class KeptInSpool(NotDelivered):
    """The producer was closed before they were acknowledged; the next one on the same spool delivers them."""


class Fenced(NotDelivered):
    """Another producer has taken over; this one must stop."""


class BufferFull(OttlaError):
    """The producer's memory stayed full for as long as a call may wait; `holding` says what holds things up.

    `accepted` is how many rows of this very call were taken over before, from its beginning: 0 but for large tables.
    """

    def __init__(self, *, waiting_bytes: int, limit_bytes: int, seconds: float, holding: str) -> None:
        self.waiting_bytes = waiting_bytes
        self.limit_bytes = limit_bytes
        self.seconds = seconds
        self.holding = holding
        self.accepted = 0
        super().__init__(
            f"{waiting_bytes:,} bytes wait to be delivered, the buffer holds {limit_bytes:,}, and in {seconds:.1f} s"
            f" no room was made{_hint(holding)}"
        )


class TransactionFailed(OttlaError):
    """A transaction was used wrongly, or has failed and can only be aborted."""


class UsedAfterFork(OttlaError):
    """A client that was made before fork() is used in the child: sockets and locks belong to the parent."""


class LocalClusterError(OttlaError):
    """Starting or controlling local brokers failed; the text says what to do."""


_READ_AGAIN = "what was read since the last commit will be read again by the members that have these partitions now"


class CommitFailed(OttlaError):
    """Offsets were not committed, and trying again would not help: `group` has moved on without this member, or the
    topic was deleted and created again.

    What was read since the last commit is read again, by whoever has the partitions now.
    """

    def __init__(self, group: str, partitions: tuple[str, ...], reason: str, *, outcome: str = _READ_AGAIN) -> None:
        self.group = group
        self.partitions = partitions
        self.reason = reason
        named = printable(", ".join(partitions[:5])) + (f" and {len(partitions) - 5} more" if partitions[5:] else "")
        super().__init__(f"group {printable(group)}: the offsets of {named} were not committed: {reason}; {outcome}")


class OffsetsLost(OttlaError):
    """The records at offsets `[start, stop)` of a partition cannot be read, or are not those that were read before.

    `reason` says why; `resume` is the first offset from which on the log can be read now. `replaced` says that it is
    the log of another topic, which has the same name.
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
    """The broker answered with an error code. `row` says what it means, `context` what was asked of whom."""

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
        """Whether trying again later may succeed."""
        return self.row.retriable


def _hint(advice: str) -> str:
    return f"\n  hint: {advice}" if advice else ""


_HOMES = {"ErrorCode": "ottla.codes", "ErrorRow": "ottla.codes", "error_row": "ottla.codes"}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, _HOMES)
