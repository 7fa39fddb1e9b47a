"""`ottla spool`: what a producer left on disk when it died or its brokers were away: list it, deliver it, export it.

The files themselves are known to `ottla.produce.spool`; this parses, asks and prints.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.general import json_option
from ottla.cli.options.security import security_options
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.stopping import Stopping
from ottla.errors import CorruptBatch, InputError, NotDelivered, SpoolInUse
from ottla.produce import spool as store

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.events.values import Event
    from ottla.model import TopicPartition
    from ottla.produce.producer import Producer
    from ottla.produce.spool import Damage, Owner, Stored
    from ottla.wire.batch import Batch
    from ottla.wire.decode import Decoder

_WAIT_SECONDS = 0.2
_NO_PRODUCER = -1
_directory = click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")


@dataclass(slots=True)
class _Kept:
    """What the spool has for one partition."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    oldest: float = float("inf")
    newest: float = 0.0
    producers: set[int] = field(default_factory=set)

    def add(self, stored: Stored) -> None:
        """One more batch."""
        self.batches += 1
        self.records += stored.header.count
        self.size_bytes += stored.ticket.size_bytes
        self.oldest = min(self.oldest, stored.created)
        self.newest = max(self.newest, stored.created)
        if stored.header.producer_id != _NO_PRODUCER:
            self.producers.add(stored.header.producer_id)


@click.group()
def spool() -> None:
    """What a producer left on disk.

    A producer with a spool keeps there what it could not deliver yet. A program that starts with the same directory
    goes on with it by itself; these commands are for a spool whose program will not come back.

    \b
    Examples:
      ottla spool list unsent
      ottla spool replay unsent --bootstrap localhost:9092
      ottla spool export unsent --output unsent.jsonl
    """


@spool.command("list")
@_directory
@json_option
@click.pass_context
def list_spool(context: click.Context, directory: Path, *, as_json: bool) -> None:
    """Show what is in a spool, who owns it, and what of it is damaged.

    Changes nothing, also while the owner lives. Ends with 0, or with 1 when something is damaged.

    \b
    Examples:
      ottla spool list unsent
      ottla spool list unsent --json | jq '.partitions[].records'
    """
    entries, damage, owner = store.inspect(directory)
    kept = _by_partition(entries)
    if as_json:
        click.echo(json.dumps(_as_dict(directory, kept, damage, owner)))
    else:
        click.echo("\n".join(_as_text(directory, kept, owner)))
        _tell_damage(damage)
    context.exit(1 if damage else 0)


@spool.command()
@_directory
@bootstrap_option
@security_options
@click.option(
    "--timeout",
    type=click.FloatRange(0.1),
    default=60.0,
    show_default=True,
    help="Seconds without any delivery after which it gives up. What is left stays in the spool.",
)
@click.pass_context
def replay(context: click.Context, directory: Path, *, bootstrap: str, security: Security, timeout: float) -> None:
    """Deliver what a dead program left in its spool, each record once.

    What the broker has already is not written again. Refused while the owner of the spool lives. Ends with 0 when all
    of it was delivered, with 1 when something is left, was refused or is damaged. Ctrl-C leaves the rest in the spool.

    \b
    Examples:
      ottla spool replay unsent --bootstrap localhost:9092
      OTTLA_PASSWORD=... ottla spool replay unsent --bootstrap kafka:9093 --tls --username app
    """
    entries, damage, owner = store.inspect(directory)
    if owner is not None:
        raise SpoolInUse(directory, pid=owner.pid or None, host=owner.host or None, started=owner.started)
    _tell_damage(damage)
    if not entries:
        click.echo(f"there is nothing to deliver in {directory}", err=True)
        context.exit(1 if damage else 0)
    run = _Replay(directory, total=sum(entry.header.count for entry in entries))
    code = run.all(bootstrap, security, timeout)
    context.exit(code or (1 if damage else 0))


class _Replay:
    """Waits while a producer delivers what it inherited."""

    def __init__(self, directory: Path, *, total: int) -> None:
        self._directory = directory
        self._total = total
        self._delivered = 0
        self._began = self._moved = time.monotonic()
        self._refused = False

    def all(self, bootstrap: str, security: Security, timeout: float) -> int:
        """Delivers; the exit code."""
        from ottla.produce.options import Spool
        from ottla.produce.producer import Producer

        stopping = Stopping("stopping: what is not delivered stays in the spool")
        with LiveLine(self._status) as live, stopping:
            producer = Producer(
                bootstrap,
                security=security,
                client_id="ottla-spool-replay",
                spool=Spool(self._directory),
                events=[self._happened],
            )
            try:
                while not stopping.asked and time.monotonic() - self._moved < timeout:
                    if self._flush(producer, live):
                        break
            except KeyboardInterrupt:
                pass
            self._close(producer, live)
        left = sum(entry.header.count for entry in store.inspect(self._directory)[0])
        click.echo(self._status() + (f"; {left:,} are still in {self._directory}" if left else ""), err=True)
        return stopping.exit_code if stopping.asked else int(bool(left or self._refused))

    def _flush(self, producer: Producer, live: LiveLine) -> bool:
        """Whether everything is decided, after waiting a moment for it."""
        try:
            producer.flush(_WAIT_SECONDS)
        except TimeoutError:
            return False
        except NotDelivered as error:
            self._tell(error, live)
        return True

    def _close(self, producer: Producer, live: LiveLine) -> None:
        try:
            producer.close(0.0)
        except NotDelivered as error:
            self._tell(error, live)

    def _tell(self, error: NotDelivered, live: LiveLine) -> None:
        self._refused = True
        live.say(str(error))

    def _happened(self, event: Event) -> None:
        from ottla.events.values import DowntimeReplayed

        if isinstance(event, DowntimeReplayed):
            self._delivered += event.records
            self._moved = time.monotonic()

    def _status(self) -> str:
        seconds = time.monotonic() - self._began
        return f"{self._delivered:,} of {self._total:,} records delivered in {seconds:.1f} s"


@spool.command()
@_directory
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this new file, which only you can read.  [default: standard output]",
)
@click.option("--force", is_flag=True, help="Replace the file of --output if there is one.")
@click.pass_context
def export(context: click.Context, directory: Path, *, output: Path | None, force: bool) -> None:
    """Write the records of a spool as JSON lines, in the form that 'ottla produce --format json' reads.

    Nothing is taken out of the spool. Damaged batches are named on stderr; then it ends with 1. A file that exists is
    left alone without --force; with it, the new one takes its place when it is complete.

    \b
    Examples:
      ottla spool export unsent --output unsent.jsonl
      ottla spool export unsent | ottla produce - --format json
    """
    entries, damage, owner = store.inspect(directory)
    _tell_damage(damage)
    if output is None:
        exported, spoilt = _write(directory, sys.stdout.buffer)
    else:
        with _own_file(output, force=force) as file:
            exported, spoilt = _write(directory, file)
    missing = len(entries) - exported
    if missing > 0 and owner is not None:
        click.echo(f"{missing} batches were delivered meanwhile by process {owner.pid}", err=True)
        missing = 0
    context.exit(1 if damage or spoilt or missing > 0 else 0)


@contextmanager
def _own_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file that only this user can read, there as a whole or not at all; what a link points to is never touched."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}") if force else path
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise InputError(f"{path} exists already: name another file, or replace it with --force") from error
    try:
        with open(handle, "wb") as file:
            yield file
        if force:
            os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _write(directory: Path, file: BinaryIO) -> tuple[int, int]:
    """How many batches were found, and how many of them could not be read."""
    from ottla.wire.decode import Decoder

    decoder = Decoder(("key", "value", "headers", "timestamp"))
    found = spoilt = 0
    for stored, batch in store.export(directory):
        found += 1
        try:
            for line in _lines(decoder, stored, batch):
                file.write(line)
        except CorruptBatch as error:
            spoilt += 1
            click.echo(str(error), err=True)
    file.flush()
    return found, spoilt


def _lines(decoder: Decoder, stored: Stored, batch: Batch) -> Iterator[bytes]:
    import pyarrow as pa

    from ottla.cli.values.jsonl import line_of

    topic, partition = stored.topic_partition
    for decoded in decoder.decode([batch], topic=topic, partition=partition):
        records = decoded.records
        position = records.schema.get_field_index("timestamp")
        milliseconds = records.column(position).cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        for row in records.set_column(position, "timestamp", milliseconds).to_pylist():
            yield line_of(row, topic=topic, partition=partition)


def _by_partition(entries: list[Stored]) -> dict[TopicPartition, _Kept]:
    kept: dict[TopicPartition, _Kept] = {}
    for stored in entries:
        kept.setdefault(stored.topic_partition, _Kept()).add(stored)
    return dict(sorted(kept.items()))


def _tell_damage(damage: list[Damage]) -> None:
    for one in damage:
        click.echo(f"damaged: {one}", err=True)


def _as_dict(
    directory: Path, kept: dict[TopicPartition, _Kept], damage: list[Damage], owner: Owner | None
) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "owner": None if owner is None else {"pid": owner.pid, "host": owner.host, "started": owner.started},
        "partitions": [
            {
                "topic": at.topic,
                "partition": at.partition,
                "batches": one.batches,
                "records": one.records,
                "bytes": one.size_bytes,
                "oldest": one.oldest,
                "newest": one.newest,
                "producer_ids": sorted(one.producers),
            }
            for at, one in kept.items()
        ],
        "damage": [
            {
                "file": one.path,
                "position": one.position,
                "bytes": one.size_bytes,
                "reason": one.reason,
                "topic": one.topic,
                "partition": one.partition,
                "batches": one.entries,
            }
            for one in damage
        ],
    }


def _as_text(directory: Path, kept: dict[TopicPartition, _Kept], owner: Owner | None) -> Iterator[str]:
    records = sum(one.records for one in kept.values())
    who = (
        "no living program owns it"
        if owner is None
        else f"owned by process {owner.pid} on {owner.host} since {_moment(owner.started)}"
    )
    yield f"{directory}: {records:,} record{'s' if records != 1 else ''} to deliver, {who}"
    for at, one in kept.items():
        ids = ", ".join(map(str, sorted(one.producers))) or "none yet"
        yield (
            f"  {at}: {one.records:,} records in {one.batches:,} batches, {one.size_bytes:,} bytes,"
            f" from {_moment(one.oldest)} to {_moment(one.newest)}, producer ids {ids}"
        )


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s"
