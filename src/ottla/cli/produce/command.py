"""`ottla produce`: lines of files or standard input to a topic.

`lines` reads, `rows` turns lines into records, and `ledger` keeps track of which lines were delivered.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import UsageError
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import check_topic, json_option, timeout_option
from ottla.cli.options.connection import few_retries
from ottla.cli.options.old import old_spelling
from ottla.cli.options.security import security_options
from ottla.cli.options.types import Duration, Integer, Size, parsed
from ottla.cli.output.json_text import json_text
from ottla.cli.produce.running import Input, Run
from ottla.cli.values.escapes import unescaped
from ottla.cli.values.quantities import show_duration
from ottla.config import LONGEST

if TYPE_CHECKING:
    from ottla.cli.produce.ledger import Counts
    from ottla.cli.produce.rows import Format, Header
    from ottla.config import Security
    from ottla.events.hub import Sink
    from ottla.produce.options import Acks
    from ottla.produce.producer import Producer

_TOPIC_PER_LINE = "-"
_ACKS: dict[str, Acks] = {"all": "all", "1": 1, "0": 0}


def _bytes(context: click.Context, parameter: click.Parameter, value: str | None) -> bytes | None:
    """Return the bytes, with `\\t`, `\\n`, `\\r`, `\\0`, `\\\\` and `\\xNN` replaced."""
    return None if value is None else unescaped(value)


def _separator(context: click.Context, parameter: click.Parameter, value: str | None) -> bytes | None:
    separator = _bytes(context, parameter, value)
    if separator is not None and (not separator or b"\n" in separator):
        raise click.BadParameter("it must not be empty or contain a newline", context, parameter)
    return separator


def _headers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Header]:
    pairs = [os.fsencode(value).partition(b"=") for value in values]
    for value, (key, separator, _) in zip(values, pairs, strict=True):
        if not key or not separator:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE, for example trace=42", context, parameter)
    try:
        return [(key.decode(), value) for key, _, value in pairs]
    except UnicodeDecodeError as error:
        raise click.BadParameter("a header's key must be UTF-8", context, parameter) from error


def _endless(context: click.Context, parameter: click.Parameter, value: float) -> float:
    return math.inf if value == 0 else value


@click.command()
@click.argument("topic", callback=parsed(check_topic), shell_complete=complete_topics)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True))
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="What a line is: a value, or a JSON object.",
)
@click.option(
    "--key-separator", callback=_separator, metavar="SEP", help=r"The key is before the first SEP; \t is a tab."
)
@click.option("--key", callback=_bytes, metavar="KEY", help="Key of every record.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_headers,
    metavar="KEY=VALUE",
    help="Header of every record. Repeatable.",
)
@click.option("--partition", type=Integer(0, (1 << 31) - 1), help="Partition of every record.")
@click.option("--null-value", callback=_bytes, metavar="TEXT", help="Send the value TEXT as null, a tombstone.")
@click.option("--strip-cr", is_flag=True, help=r"Lines end with \r\n.")
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Replicas that must have a record before it counts as delivered.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compression of batches.",
)
@click.option(
    "--linger",
    type=Duration(0, LONGEST),
    default="5ms",
    show_default=True,
    help="How long a record may wait for others to fill a batch.",
)
@click.option("--batch-size", type=Size(62, 1 << 30), default="1MB", show_default=True, help="Maximum size of a batch.")
@old_spelling("--batch-bytes", "--batch-size")
@click.option(
    "--max-record-size",
    type=Size(1, (1 << 30) - 1),
    default="1MB",
    show_default=True,
    help="Largest record to send; larger ones are refused.",
)
@old_spelling("--max-record-bytes", "--max-record-size")
@click.option(
    "--delivery-timeout",
    type=Duration(0, LONGEST),
    default="2m",
    show_default=True,
    callback=_endless,
    help="How long to try to deliver a record before it fails, or stays in the spool; 0: forever.",
)
@click.option("--create-topic", is_flag=True, help="Let the brokers create a topic that does not exist.")
@click.option(
    "--spool",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep undelivered records in DIR; those already there are delivered first.",
)
@click.option("--write-ahead", is_flag=True, help="With --spool: store every record there until it is acknowledged.")
@bootstrap_option
@security_options
@timeout_option(note="Applies at the start.")
@click.option("-v", "--verbose", is_flag=True, help="Also print the offsets of the records.")
@json_option
@click.pass_context
def produce(
    context: click.Context,
    /,
    topic: str,
    files: tuple[str, ...],
    *,
    acks: str,
    compression: str,
    linger: float,
    batch_size: int,
    max_record_size: int,
    delivery_timeout: float,
    create_topic: bool,
    spool: Path | None,
    write_ahead: bool,
    bootstrap: str,
    security: Security,
    timeout: float,
    verbose: bool,
    as_json: bool,
    **lines: Any,
) -> None:
    """Send the lines of FILES, or of standard input, to TOPIC.

    Lines are bytes that end with a newline, and are sent unchanged; an empty line is an empty value. A line that is
    invalid or was not delivered is reported on stderr as FILE:LINE: REASON, and the others are still sent. Exit codes:
    0 all lines delivered, 1 some not delivered, 2 usage error. Ctrl-C stops reading, delivers what was read and exits
    with 130.

    \b
    With --format json each line is an object:
      {"value": "text", "key": {"base64": "AAE="}, "headers": {"trace": "42"}, "timestamp": 1767225600.5}
    Only value is required; null is a tombstone. Texts are sent as UTF-8, {"base64": "..."} stands for any other bytes.
    headers is an object, or a list of [key, value] pairs; timestamp is seconds, or "2026-01-01T00:00:00Z"; partition
    and topic select where the record goes. If TOPIC is '-', every line must have its own topic.

    \b
    Examples:
      ottla produce clicks access.log
      printf 'user-1:hello\\nuser-2:hi\\n' | ottla produce clicks --key-separator :
      tail -F app.log | ottla produce logs --header host=edge-7 --compression zstd --spool unsent
      ottla produce clicks --format json records.jsonl --json
      ottla spool export unsent | ottla produce - --format json
    """
    from ottla.cli.produce.lines import check_input, check_lines
    from ottla.net.discovery import OnUnknownTopic
    from ottla.produce.options import Batching, Buffering, Spool
    from ottla.produce.producer import Producer

    if write_ahead and spool is None:
        raise UsageError("--write-ahead needs --spool DIR")
    if delivery_timeout <= linger:
        limit = show_duration(delivery_timeout)
        raise UsageError(f"--linger {show_duration(linger)} must be shorter than --delivery-timeout {limit}")
    check_input(files)
    check_lines(files, topic=topic, bootstrap=bootstrap)
    source = Input(files or ("-",), _format(topic, max_record_size, **lines))

    def make(sink: Sink) -> Producer:
        return Producer(
            bootstrap,
            security=security,
            client_id="ottla-produce",
            retry=few_retries() if spool is None else None,
            # Longer than a delivery may take: by then the buffer has room again.
            buffering=Buffering(wait=min(delivery_timeout + 60.0, LONGEST)),
            spool=None if spool is None else Spool(spool, write_ahead=write_ahead),
            events=[] if spool is None else [sink],
            acks=_ACKS[acks],
            compression=compression,
            batching=Batching(bytes=batch_size, linger=linger),
            max_record_bytes=max_record_size,
            delivery_timeout=delivery_timeout,
            unknown_topic=OnUnknownTopic.CREATE if create_topic else OnUnknownTopic.REFUSE,
        )

    patience = None if spool is None else delivery_timeout
    # A live line would be drawn over the text that the user types.
    is_typed = "-" in source.files and sys.stdin is not None and sys.stdin.isatty()
    total = None if is_typed else source.size_bytes
    run = Run(make, max_record_size=max_record_size, patience=patience, is_typed=is_typed, total=total)
    if topic != _TOPIC_PER_LINE and not create_topic and spool is None:
        run.check(topic, timeout)
    code = run.all(source)
    _report(run.counts, as_json=as_json, verbose=verbose)
    context.exit(code)


def _format(
    topic: str,
    max_record_size: int,
    *,
    form: str,
    key_separator: bytes | None,
    key: bytes | None,
    null_value: bytes | None,
    strip_cr: bool,
    headers: list[Header],
    partition: int | None,
) -> Format:
    from ottla.cli.produce.rows import JsonLines, PlainLines

    if form == "json":
        given = {"--key-separator": key_separator, "--key": key, "--null-value": null_value, "--strip-cr": strip_cr}
        for option, value in given.items():
            if value not in (None, False):
                raise UsageError(f"{option} and --format json are mutually exclusive: a JSON line has this itself")
        own = None if topic == _TOPIC_PER_LINE else topic
        return JsonLines(topic=own, max_record_bytes=max_record_size, headers=headers, partition=partition)
    if topic == _TOPIC_PER_LINE:
        raise UsageError("'-' as TOPIC needs --format json, where each line has its own topic")
    if key is not None and key_separator is not None:
        raise UsageError("--key and --key-separator are mutually exclusive")
    return PlainLines(
        topic=topic,
        max_record_bytes=max_record_size,
        separator=key_separator,
        key=key,
        null=null_value,
        strips_cr=strip_cr,
        headers=headers,
        partition=partition,
    )


def _report(counts: Counts, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        click.echo(json_text(counts.as_dict()))
        return
    click.echo(str(counts), err=True)
    for tp, arrived in sorted(counts.arrived.items()) if verbose else ():
        offsets = f" in [{arrived.start}, {arrived.stop})" if arrived.start >= 0 else ""
        click.echo(f"  {tp}: {arrived.records:,} records{offsets}", err=True)
