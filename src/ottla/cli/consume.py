"""`ottla consume`: records of topics to standard output or a file.

It parses and puts together: where to begin and end (`places`), which records (`selecting`), how they look (`showing`,
`template`), where they go (`outputs`), and the way from one to the other (`flow`).
"""

from __future__ import annotations

import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli import Misuse
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.connecting import soon
from ottla.cli.options.reading import (
    from_option,
    isolation_option,
    max_batch_bytes_option,
    parsed,
    partition_option,
    topics_argument,
    until_option,
)
from ottla.cli.options.security import security_options
from ottla.cli.terminal.interrupting import Interruption, output_pipe
from ottla.cli.values.escapes import literal, unescaped
from ottla.cli.values.places import Fixed, Place

if TYPE_CHECKING:
    from ottla.cli.reading.flow import Flow, Source
    from ottla.cli.reading.outputs import Output
    from ottla.cli.reading.resolving import Wanted
    from ottla.cli.reading.selecting import HasHeader
    from ottla.cli.reading.showing import Look
    from ottla.cli.reading.sources import FromGroup
    from ottla.config import Security


def _header(text: str) -> HasHeader:
    from ottla.cli.reading.selecting import HasHeader

    name, separator, value = text.partition("=")
    if not name:
        raise ValueError(f"{text!r} is not NAME or NAME=VALUE, for example trace=42")
    return HasHeader(name, literal(value) if separator else None)


def _pattern(text: str) -> bytes:
    from ottla.cli.reading.selecting import pattern

    return pattern(text)


def _output(text: str) -> Path:
    from ottla.cli.reading.outputs import WRITERS

    path = Path(text)
    if path.suffix not in WRITERS:
        raise ValueError(f"{text!r}: the name must end with {', '.join(WRITERS)}, which says what is written")
    if path.is_dir():
        raise ValueError(f"{text!r} is a directory")
    return path


@click.command()
@topics_argument
@from_option
@until_option("latest, an offset, a time, group:NAME.")
@click.option("--exit-at-end", is_flag=True, help="End where the log ends now; the same as --until latest.")
@partition_option
@click.option("--max-records", type=click.IntRange(1), metavar="N", help="End after so many.")
@click.option(
    "--group", metavar="NAME", help="Read as a member of this consumer group, and commit what was written out."
)
@isolation_option
@click.option(
    "--on-lost",
    type=click.Choice(["error", "earliest", "latest"]),
    default="error",
    show_default=True,
    help="When records that were to be read are gone: fail, or go on there.",
)
@max_batch_bytes_option
@click.option("--key", metavar="TEXT", callback=parsed(literal), help="Only records with this key; also base64:....")
@click.option("--key-pattern", metavar="RE", callback=parsed(_pattern), help="Only where RE is found in the key.")
@click.option("--value-pattern", metavar="RE", callback=parsed(_pattern), help="Only where RE is found in the value.")
@click.option(
    "--contains",
    multiple=True,
    metavar="TEXT",
    callback=parsed(literal),
    help="Only values with TEXT in them; also base64:.... Repeatable.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME[=VALUE]",
    callback=parsed(_header),
    help="Only records with such a header. Repeatable.",
)
@click.option("--format", "form", metavar="TEXT", help=r"Print this for each record, for example '{offset} {value}\n'.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a JSON object in a line.")
@click.option(
    "--key-separator", metavar="SEP", callback=parsed(unescaped), help=r"Print the key and SEP before the value."
)
@click.option(
    "--null-value", metavar="TEXT", callback=parsed(unescaped), help="Print TEXT for a null.  [default: nothing]"
)
@click.option(
    "--raw",
    is_flag=True,
    help="Let control characters of records through to a terminal, too. Files and pipes get every byte as it is.",
)
@click.option(
    "--output",
    metavar="FILE",
    callback=parsed(_output),
    help="Write a file instead: .parquet, .arrow or .jsonl. It appears when it is complete.",
)
@click.option("--force", is_flag=True, help="With --output: replace a file that is there.")
@bootstrap_option
@security_options
@click.option(
    "--timeout",
    type=click.FloatRange(0.1),
    default=20.0,
    show_default=True,
    help="Seconds to find brokers and topics.",
)
@click.pass_context
def consume(
    context: click.Context,
    /,
    topics: tuple[str, ...],
    *,
    start: Place,
    stop: Fixed | None,
    exit_at_end: bool,
    partitions: list[int] | None,
    max_records: int | None,
    output: Path | None,
    force: bool,
    group: str | None,
    bootstrap: str,
    security: Security,
    timeout: float,
    isolation: str,
    on_lost: str,
    max_batch_bytes: int,
    **given: Any,
) -> None:
    """Print the records of TOPICs: the values, as they are, each with a newline.

    Begins at the oldest record. Goes on for ever, unless --until, --exit-at-end or --max-records ends it. Within
    a partition the order is that of the log. Ends with 0 when done, 1 when something failed, 2 when used wrongly; after
    Ctrl-C with 130, with what was read written out.

    \b
    Fields of --format: {topic} {partition} {offset} {timestamp} {timestamp_type} {key} {value} {headers}
    {header.NAME} {key_size} {value_size}. Forms: {value:hex} {value:base64} {value:json} {value:size}, also of keys
    and headers; {timestamp:iso} {timestamp:ms} {timestamp:s}; {headers:json}. \\n \\t \\xNN and {{ }} are understood.

    \b
    Examples:
      ottla consume clicks                                        what is there and what comes
      ottla consume clicks --from latest --format '{key}: {value}\\n'
      ottla consume clicks --from -10 --exit-at-end               the last ten of each partition
      ottla consume clicks --from -2h --until -1h --contains error
      ottla consume clicks users --json --exit-at-end | ottla produce - --format json --bootstrap elsewhere:9092
      ottla consume clicks --exit-at-end --output clicks.parquet
      ottla consume clicks --group billing --json                 as a member of a consumer group
    """
    from ottla.cli.reading.flow import Flow, Progress
    from ottla.cli.reading.outputs import FileOutput
    from ottla.cli.reading.resolving import Wanted
    from ottla.cli.reading.selecting import Selection
    from ottla.cli.reading.sources import COMMIT_SECONDS, FromReader
    from ottla.fetch.options import Fetching

    if output is not None and output.exists() and not force:
        raise Misuse(f"{output} exists already: choose another name, or --force to replace it")
    if force and output is None:
        raise Misuse("--force is for --output")
    if exit_at_end and stop is not None:
        raise Misuse("--exit-at-end and --until exclude one another")
    wanted = Wanted(
        topics=topics, start=start, stop="latest" if exit_at_end else stop, partitions=partitions, timeout=timeout
    )
    selection = Selection(**{name: given.pop(name) for name in _FILTERS})
    target = _target(output, **given)
    client = {
        "security": security,
        "client_id": "ottla-consume",
        "isolation": isolation,
        "on_lost": on_lost,
        "fetching": Fetching(max_batch_bytes=max_batch_bytes),
        "retry": soon(),
    }
    if group is None:
        source: Source = FromReader(wanted, bootstrap, **client)
    else:
        # Records in a file that is not complete are not safe.
        commit_every = COMMIT_SECONDS if output is None else None
        bounds = {"--exit-at-end": exit_at_end, "--until": stop is not None, "--partition": partitions is not None}
        source = _member(wanted, group, bootstrap, given=bounds, commit_every=commit_every, **client)
    is_shown = output is not None or (wanted.stop is not None and not sys.stdout.isatty())
    with Interruption(output_pipe() if output is None else None) as interruption:
        flow = Flow(
            source=source,
            selection=selection,
            output=target,
            interruption=interruption,
            progress=Progress(),
            is_shown=is_shown,
            limit=max_records,
        )
        _run(flow)
    if isinstance(target, FileOutput) and target.is_complete:
        count = flow.progress.records
        click.echo(f"{count:,} record{'s' if count != 1 else ''} written to {output}", err=True)
    context.exit(interruption.exit_code)


_FILTERS = ("key", "key_pattern", "value_pattern", "contains", "headers")


def _run(flow: Flow) -> None:
    """The output is complete before the source hears that all went well, and a group is told so."""
    try:
        with flow.source, flow.output:
            flow.run()
    except BrokenPipeError:
        flow.interruption.asked = flow.interruption.asked or signal.SIGPIPE
    except KeyboardInterrupt:
        click.echo("given up", err=True)


def _member(wanted: Wanted, group: str, bootstrap: str, *, given: dict[str, bool], **client: Any) -> FromGroup:
    from ottla.cli.reading.sources import FromGroup

    for option, is_given in given.items():
        if is_given:
            raise Misuse(f"{option} is not for --group: the group says what is read")
    if not isinstance(wanted.start, str | datetime):
        raise Misuse("with --group, --from says where to begin what the group never read: earliest, latest or a time")
    return FromGroup(bootstrap, group=group, topics=wanted.topics, start=wanted.start, **client)


def _target(
    output: Path | None,
    *,
    form: str | None,
    as_json: bool,
    key_separator: bytes | None,
    null_value: bytes | None,
    raw: bool,
) -> Output:
    from ottla.cli.reading.outputs import FileOutput, StandardOutput

    looks = {"--format": form is not None, "--json": as_json, "--key-separator": key_separator is not None}
    given = [option for option, is_given in looks.items() if is_given]
    if len(given) > 1:
        raise Misuse(f"{' and '.join(given)} exclude one another")
    if output is not None:
        if given or null_value is not None:
            raise Misuse(f"{(given or ['--null-value'])[0]} is for standard output: the suffix of --output says all")
        return FileOutput(output)
    if as_json and null_value is not None:
        raise Misuse("--null-value is not for --json, which has null itself")
    readable = not raw and sys.stdout is not None and sys.stdout.isatty()
    look = _look(form, as_json=as_json, separator=key_separator, null=null_value or b"", readable=readable)
    return StandardOutput(look)


def _look(form: str | None, *, as_json: bool, separator: bytes | None, null: bytes, readable: bool) -> Look:
    from ottla.cli.reading import template
    from ottla.cli.reading.showing import JsonObjects, Values

    if as_json:
        return JsonObjects()
    if form is None:
        return Values(separator=separator, null=null, readable=readable)
    try:
        return template.parse(form, null=null, readable=readable)
    except ValueError as error:
        raise Misuse(f"--format: {error}") from error
