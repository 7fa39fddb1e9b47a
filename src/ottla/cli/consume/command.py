"""`ottla consume`: records of topics to standard output or a file.

The command puts the parts together: a source of records (`sources`), filters (`filters`), a format (`formats`,
`template`), an output (`outputs`), and the loop between them (`flow`).
"""

from __future__ import annotations

import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.completion.values import complete_groups
from ottla.cli.errors import UsageError
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import (
    isolation_option,
    max_batch_size_option,
    partition_option,
    timeout_option,
    topics_argument,
)
from ottla.cli.options.connection import few_retries
from ottla.cli.options.old import old_flag
from ottla.cli.options.places import from_option, until_option
from ottla.cli.options.security import security_options
from ottla.cli.options.types import Integer, parsed
from ottla.cli.terminal.interruption import Interruption, output_pipe
from ottla.cli.values.escapes import literal, unescaped
from ottla.cli.values.places import Place

if TYPE_CHECKING:
    from ottla.cli.consume.filters import HasHeader
    from ottla.cli.consume.flow import Flow, Source
    from ottla.cli.consume.formats import Format
    from ottla.cli.consume.outputs import Output
    from ottla.cli.consume.sources import GroupSource
    from ottla.cli.ranges import ReadPlan
    from ottla.config import Security


def _header(text: str) -> HasHeader:
    from ottla.cli.consume.filters import HasHeader

    name, separator, value = text.partition("=")
    if not name:
        raise ValueError(f"{text!r} is not NAME or NAME=VALUE, for example trace=42")
    return HasHeader(name, literal(value) if separator else None)


def _pattern(text: str) -> bytes:
    from ottla.cli.consume.filters import pattern

    return pattern(text)


def _output(text: str) -> Path:
    from ottla.cli.consume.outputs import WRITERS

    path = Path(text)
    if path.suffix not in WRITERS:
        raise ValueError(f"{text!r}: the suffix must be one of {', '.join(WRITERS)}")
    if path.is_dir():
        raise ValueError(f"{text!r} is a directory")
    return path


@click.command()
@topics_argument
@from_option()
@until_option(default="never")
@old_flag("--exit-at-end", "--until", "latest")
@partition_option
@click.option("--max-records", type=Integer(1), help="End after this many records.")
@click.option(
    "--group",
    metavar="NAME",
    shell_complete=complete_groups,
    help="Join this consumer group, and commit what was written out. --from applies where it has no commits.",
)
@isolation_option
@click.option(
    "--on-lost",
    type=click.Choice(["error", "earliest", "latest"]),
    default="error",
    show_default=True,
    help="If records were deleted before they were read: fail, or continue there.",
)
@max_batch_size_option
@click.option("--key", metavar="TEXT", callback=parsed(literal), help="Only records with this key; also base64:...")
@click.option("--key-pattern", metavar="RE", callback=parsed(_pattern), help="Only keys that match RE.")
@click.option("--value-pattern", metavar="RE", callback=parsed(_pattern), help="Only values that match RE.")
@click.option(
    "--contains",
    multiple=True,
    metavar="TEXT",
    callback=parsed(literal),
    help="Only values that contain TEXT; also base64:... Repeatable.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME[=VALUE]",
    callback=parsed(_header),
    help="Only records with this header. Repeatable.",
)
@click.option("--format", "template", metavar="TEXT", help=r"Print this for each record, such as '{offset} {value}\n'.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a JSON object on a line.")
@click.option(
    "--key-separator", metavar="SEP", callback=parsed(unescaped), help=r"Print the key and SEP before the value."
)
@click.option(
    "--null-value", metavar="TEXT", callback=parsed(unescaped), help="Print TEXT for null.  [default: nothing]"
)
@click.option(
    "--raw",
    is_flag=True,
    help="Do not escape control characters on a terminal. Files and pipes always get the bytes unchanged.",
)
@click.option(
    "--output",
    metavar="FILE",
    callback=parsed(_output),
    help="Write a .parquet, .arrow or .jsonl file instead. It appears when it is complete.",
)
@click.option("--force", is_flag=True, help="With --output: replace an existing file.")
@bootstrap_option
@security_options
@timeout_option()
@click.pass_context
def consume(
    context: click.Context,
    /,
    topics: tuple[str, ...],
    *,
    start: Place,
    stop: Place | None,
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
    max_batch_size: int,
    **given: Any,
) -> None:
    """Print the records of TOPICs: each value on a line.

    Starts at the oldest record and waits for new ones, unless --until or --max-records ends it. Within a partition,
    records come in the order of the log. With --group and --until latest it reads what the group has not read yet,
    commits and ends. Exit codes: 0 success, 1 failure, 2 usage error, 130 after Ctrl-C, with what was read written out.

    \b
    Fields of --format: {topic} {partition} {offset} {timestamp} {timestamp_type} {key} {value} {headers}
    {header.NAME} {key_size} {value_size}. Forms: {value:hex} {value:base64} {value:json} {value:size}, also of keys
    and headers; {timestamp:iso} {timestamp:ms} {timestamp:s}; {headers:json}. \\n \\t \\xNN and {{ }} are understood.

    \b
    Examples:
      ottla consume clicks                                        existing records, then new ones
      ottla consume clicks --from latest --format '{key}: {value}\\n'
      ottla consume clicks --from -10 --until latest              the last ten of each partition
      ottla consume clicks --from -2h --until -1h --contains error
      ottla consume clicks users --json --until latest | ottla produce - --format json --bootstrap elsewhere:9092
      ottla consume clicks --until latest --output clicks.parquet
      ottla consume clicks --group billing --until latest         what this group has not read yet
    """
    from ottla.cli.consume.filters import Filters
    from ottla.cli.consume.flow import Flow, Progress
    from ottla.cli.consume.outputs import FileOutput
    from ottla.cli.consume.sources import COMMIT_SECONDS, ReaderSource
    from ottla.cli.ranges import ReadPlan
    from ottla.fetch.options import Fetching

    if output is not None and output.exists() and not force:
        raise UsageError(f"{output} exists already: choose another name, or pass --force to replace it")
    if force and output is None:
        raise UsageError("--force needs --output")
    plan = ReadPlan(topics=topics, start=start, stop=stop, partitions=partitions, timeout=timeout)
    filters = Filters(**{name: given.pop(name) for name in _FILTERS})
    target = _target(output, **given)
    client = {
        "security": security,
        "client_id": "ottla-consume",
        "isolation": isolation,
        "on_lost": on_lost,
        "fetching": Fetching(max_batch_bytes=max_batch_size),
        "retry": few_retries(),
    }
    if group is None:
        source: Source = ReaderSource(plan, bootstrap, **client)
    else:
        # Records in an incomplete file are not safe yet, so they are committed at the end.
        commit_every = COMMIT_SECONDS if output is None else None
        source = _member(plan, group, bootstrap, commit_every=commit_every, **client)
    is_shown = output is not None or (stop is not None and not sys.stdout.isatty())
    with Interruption(output_pipe() if output is None else None) as interruption:
        flow = Flow(
            source=source,
            filters=filters,
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
    """Complete the output before the source closes without an error and a group commits."""
    try:
        with flow.source, flow.output:
            flow.run()
    except BrokenPipeError:
        flow.interruption.asked = flow.interruption.asked or signal.SIGPIPE
    except KeyboardInterrupt:
        click.echo("aborted", err=True)


def _member(plan: ReadPlan, group: str, bootstrap: str, **client: Any) -> GroupSource:
    from ottla.cli.consume.sources import GroupSource

    if plan.partitions is not None:
        raise UsageError("--partition and --group are mutually exclusive: the group assigns partitions")
    if not isinstance(plan.start, str | datetime):
        raise UsageError("with --group, --from is where to start without a commit: earliest, latest or a time")
    return GroupSource(plan, bootstrap, group=group, start=plan.start, **client)


def _target(
    output: Path | None,
    *,
    template: str | None,
    as_json: bool,
    key_separator: bytes | None,
    null_value: bytes | None,
    raw: bool,
) -> Output:
    from ottla.cli.consume.outputs import FileOutput, StandardOutput

    formats = {"--format": template is not None, "--json": as_json, "--key-separator": key_separator is not None}
    given = [option for option, is_given in formats.items() if is_given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are mutually exclusive")
    if output is not None:
        if given or null_value is not None:
            raise UsageError(f"{(given or ['--null-value'])[0]} and --output are mutually exclusive")
        return FileOutput(output)
    if as_json and null_value is not None:
        raise UsageError("--null-value and --json are mutually exclusive: JSON has null")
    readable = not raw and sys.stdout is not None and sys.stdout.isatty()
    form = _format(template, as_json=as_json, separator=key_separator, null=null_value or b"", readable=readable)
    return StandardOutput(form)


def _format(template: str | None, *, as_json: bool, separator: bytes | None, null: bytes, readable: bool) -> Format:
    from ottla.cli.consume.formats import JsonObjects, Values
    from ottla.cli.consume.template import parse

    if as_json:
        return JsonObjects()
    if template is None:
        return Values(separator=separator, null=null, readable=readable)
    try:
        return parse(template, null=null, readable=readable)
    except ValueError as error:
        raise UsageError(f"--format: {error}") from error
