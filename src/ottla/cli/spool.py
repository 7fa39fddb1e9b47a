"""`ottla spool`: list, replay and export what a producer left on disk. `ottla.produce.spool` knows the files."""

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
from ottla.cli.options.common import json_option, timeout_option
from ottla.cli.options.security import security_options
from ottla.cli.output.pace import Pace, progress_line, records_rate
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
class _PartitionContents:
    """The batches of one partition in a spool."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    oldest: float = float("inf")
    newest: float = 0.0
    producers: set[int] = field(default_factory=set)

    def add(self, stored: Stored) -> None:
        """Count a batch."""
        self.batches += 1
        self.records += stored.header.count
        self.size_bytes += stored.ticket.size_bytes
        self.oldest = min(self.oldest, stored.created)
        self.newest = max(self.newest, stored.created)
        if stored.header.producer_id != _NO_PRODUCER:
            self.producers.add(stored.header.producer_id)


@click.group()
def spool() -> None:
    """List, replay and export what a producer left on disk.

    A producer with a spool stores there what it could not deliver yet. A program that starts with the same directory
    delivers it; these commands are for a spool whose program does not come back.

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
    """Show the contents, the owner and the damage of a spool.

    Changes nothing, and works while the owner runs. Exits with 1 if something is damaged.

    \b
    Examples:
      ottla spool list unsent
      ottla spool list unsent --json | jq '.partitions[].records'
    """
    entries, damage, owner = store.inspect(directory)
    contents = _by_partition(entries)
    if as_json:
        click.echo(json.dumps(_as_dict(directory, contents, damage, owner)))
    else:
        click.echo("\n".join(_as_text(directory, contents, owner)))
        _report_damage(damage)
    context.exit(1 if damage else 0)


@spool.command()
@_directory
@bootstrap_option
@security_options
@timeout_option("60s", note="What is left stays in the spool.")
@json_option
@click.pass_context
def replay(
    context: click.Context, directory: Path, *, bootstrap: str, security: Security, timeout: float, as_json: bool
) -> None:
    """Deliver what a dead program left in its spool, each record once.

    Records that the broker already has are not written again. Refused while the owner of the spool runs. Exits with 0
    if everything was delivered, with 1 if something is left, was refused or is damaged. Ctrl-C leaves the rest in the
    spool.

    \b
    Examples:
      ottla spool replay unsent --bootstrap localhost:9092
      OTTLA_PASSWORD=... ottla spool replay unsent --bootstrap kafka:9093 --tls --username app
    """
    entries, damage, owner = store.inspect(directory)
    if owner is not None:
        raise SpoolInUse(directory, pid=owner.pid or None, host=owner.host or None, started=owner.started)
    _report_damage(damage)
    if not entries:
        if as_json:
            click.echo(json.dumps({"directory": str(directory), "delivered": 0, "left": 0, "seconds": 0.0}))
        else:
            click.echo(f"nothing to deliver in {directory}", err=True)
        context.exit(1 if damage else 0)
    run = _Replay(directory, total=sum(entry.header.count for entry in entries), as_json=as_json)
    code = run.all(bootstrap, security, timeout)
    context.exit(code or (1 if damage else 0))


class _Replay:
    """Waits while a producer delivers the contents of the spool."""

    def __init__(self, directory: Path, *, total: int, as_json: bool) -> None:
        self._directory = directory
        self._as_json = as_json
        self._pace = Pace()
        self._total = total
        self._delivered = 0
        self._began = self._last_delivery = time.monotonic()
        self._refused = False

    def all(self, bootstrap: str, security: Security, timeout: float) -> int:
        """Deliver everything and return the exit code."""
        from ottla.produce.options import Spool
        from ottla.produce.producer import Producer

        stopping = Stopping("stopping: undelivered records stay in the spool")
        with LiveLine(self._status) as live, stopping:
            producer = Producer(
                bootstrap,
                security=security,
                client_id="ottla-spool-replay",
                spool=Spool(self._directory),
                events=[self._on_event],
            )
            try:
                while not stopping.asked and time.monotonic() - self._last_delivery < timeout:
                    if self._flush(producer, live):
                        break
            except KeyboardInterrupt:
                pass
            self._close(producer, live)
        left = sum(entry.header.count for entry in store.inspect(self._directory)[0])
        self._show_end(left)
        return stopping.exit_code if stopping.asked else int(bool(left or self._refused))

    def _show_end(self, left: int) -> None:
        seconds = time.monotonic() - self._began
        if self._as_json:
            row = {"delivered": self._delivered, "left": left, "seconds": round(seconds, 3)}
            click.echo(json.dumps({"directory": str(self._directory), **row}))
            return
        still = f"; {left:,} are still in {self._directory}" if left else ""
        click.echo(f"{self._delivered:,} of {self._total:,} records delivered in {seconds:.1f} s{still}", err=True)

    def _flush(self, producer: Producer, live: LiveLine) -> bool:
        """Wait a moment for deliveries; return whether all are settled."""
        try:
            producer.flush(_WAIT_SECONDS)
        except TimeoutError:
            return False
        except NotDelivered as error:
            self._report(error, live)
        return True

    def _close(self, producer: Producer, live: LiveLine) -> None:
        try:
            producer.close(0.0)
        except NotDelivered as error:
            self._report(error, live)

    def _report(self, error: NotDelivered, live: LiveLine) -> None:
        self._refused = True
        live.say(str(error))

    def _on_event(self, event: Event) -> None:
        from ottla.events.values import DowntimeReplayed

        if isinstance(event, DowntimeReplayed):
            self._delivered += event.records
            self._last_delivery = time.monotonic()

    def _status(self) -> str:
        self._pace.observe(time.monotonic(), self._delivered)
        done = f"{self._delivered:,} of {self._total:,} records delivered"
        return progress_line(done, records_rate(self._pace), pace=self._pace, total=self._total)


@spool.command()
@_directory
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this new file, which only you can read.  [default: standard output]",
)
@click.option("--force", is_flag=True, help="Replace the file of --output if it exists.")
@click.pass_context
def export(context: click.Context, directory: Path, *, output: Path | None, force: bool) -> None:
    """Write the records of a spool as JSON lines.

    'ottla produce --format json' reads them. Nothing is removed from the spool. Damaged batches are reported on stderr,
    and the exit code is 1. An existing file is kept, unless --force replaces it when the new one is complete.

    \b
    Examples:
      ottla spool export unsent --output unsent.jsonl
      ottla spool export unsent | ottla produce - --format json
    """
    entries, damage, owner = store.inspect(directory)
    _report_damage(damage)
    if output is None:
        exported, corrupt = _write(directory, sys.stdout.buffer)
    else:
        with _own_file(output, force=force) as file:
            exported, corrupt = _write(directory, file)
    missing = len(entries) - exported
    if missing > 0 and owner is not None:
        click.echo(f"process {owner.pid} delivered {missing} batches meanwhile", err=True)
        missing = 0
    context.exit(1 if damage or corrupt or missing > 0 else 0)


@contextmanager
def _own_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Open a file that only this user can read, complete or not there at all; links are not followed."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}") if force else path
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise InputError(f"{path} exists already: choose another name, or pass --force to replace it") from error
    try:
        with open(handle, "wb") as file:
            yield file
        if force:
            os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _write(directory: Path, file: BinaryIO) -> tuple[int, int]:
    """Write all records; return the number of batches, and of those that could not be read."""
    from ottla.wire.decode import Decoder

    decoder = Decoder(("key", "value", "headers", "timestamp"))
    batches = corrupt = 0
    for stored, batch in store.export(directory):
        batches += 1
        try:
            for line in _lines(decoder, stored, batch):
                file.write(line)
        except CorruptBatch as error:
            corrupt += 1
            click.echo(str(error), err=True)
    file.flush()
    return batches, corrupt


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


def _by_partition(entries: list[Stored]) -> dict[TopicPartition, _PartitionContents]:
    contents: dict[TopicPartition, _PartitionContents] = {}
    for stored in entries:
        contents.setdefault(stored.topic_partition, _PartitionContents()).add(stored)
    return dict(sorted(contents.items()))


def _report_damage(damage: list[Damage]) -> None:
    for piece in damage:
        click.echo(f"damaged: {piece}", err=True)


def _as_dict(
    directory: Path, contents: dict[TopicPartition, _PartitionContents], damage: list[Damage], owner: Owner | None
) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "owner": None if owner is None else {"pid": owner.pid, "host": owner.host, "started": owner.started},
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "batches": content.batches,
                "records": content.records,
                "bytes": content.size_bytes,
                "oldest": content.oldest,
                "newest": content.newest,
                "producer_ids": sorted(content.producers),
            }
            for tp, content in contents.items()
        ],
        "damage": [
            {
                "file": piece.path,
                "position": piece.position,
                "bytes": piece.size_bytes,
                "reason": piece.reason,
                "topic": piece.topic,
                "partition": piece.partition,
                "batches": piece.entries,
            }
            for piece in damage
        ],
    }


def _as_text(directory: Path, contents: dict[TopicPartition, _PartitionContents], owner: Owner | None) -> Iterator[str]:
    records = sum(content.records for content in contents.values())
    ownership = (
        "not in use"
        if owner is None
        else f"in use by process {owner.pid} on {owner.host} since {_moment(owner.started)}"
    )
    yield f"{directory}: {records:,} record{'s' if records != 1 else ''} to deliver, {ownership}"
    for tp, content in contents.items():
        ids = ", ".join(map(str, sorted(content.producers))) or "none yet"
        yield (
            f"  {tp}: {content.records:,} record{'s' if content.records != 1 else ''} in {content.batches:,}"
            f" batch{'es' if content.batches != 1 else ''}, {content.size_bytes:,} bytes,"
            f" from {_moment(content.oldest)} to {_moment(content.newest)}, producer ids {ids}"
        )


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s"
