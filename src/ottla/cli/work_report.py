"""`ottla work report`: what a fleet has done, from the files of events that its nodes wrote, added up by Spark.

It parses, starts a session, and writes tables, JSON or a chart. Spark is imported only when the command runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli import Failure, Misuse
from ottla.cli.options.general import json_option
from ottla.cli.terminal.interrupting import Interrupted, Interruption
from ottla.cli.terminal.sparks import spark_session
from ottla.cli.views.tables import terminal_width
from ottla.cli.views.work_report import report_html, report_svg, report_text

if TYPE_CHECKING:
    from ottla.spark.work_report import WorkReport

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("path")
@click.option("--html", "page", type=_FILE, metavar="FILE", help="Write a page with the chart and the tables, too.")
@click.option("--svg", "chart", type=_FILE, metavar="FILE", help="Write the chart, too: records by hour and host.")
@click.option(
    "--slowest", type=click.IntRange(0, 10_000), default=10, show_default=True, metavar="N", help="So many units."
)
@click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*]]")
@json_option
@click.pass_context
def report(
    context: click.Context,
    /,
    path: str,
    *,
    page: Path | None,
    chart: Path | None,
    slowest: int,
    master: str | None,
    as_json: bool,
) -> None:
    """Report what a fleet has done: units, records and bytes by host and hour, slow units, waste, retries, failures.

    PATH is a folder that 'ottla work run --events' wrote to, a file of it, or a pattern. Lines that cannot be read are
    counted and left out. Needs Spark: pip install 'ottla[spark]'.

    \b
    Examples:
      ottla work report /var/log/fleet
      ottla work report /var/log/fleet --html fleet.html
      ottla work report '/logs/*/events-*' --json --master spark://host:7077
    """
    for option, file in (("--html", page), ("--svg", chart)):
        if file is not None and not file.parent.is_dir():
            raise Misuse(f"{option} {file}: there is no folder {file.parent}")
    with Interruption() as interruption:
        try:
            found = interruption.wait(lambda: _report(path, slowest, master))
        except Interrupted:
            context.exit(interruption.exit_code)
    if page is not None:
        page.write_text(report_html(found))
    if chart is not None:
        chart.write_text(report_svg(found))
    click.echo(json.dumps(found.to_json()) if as_json else report_text(found, width=terminal_width()))


def _report(path: str, slowest: int, master: str | None) -> WorkReport:
    part = _spark_part()
    files = part.find_files(path)
    with spark_session("ottla work report", master, {"spark.log.level": "OFF"}) as spark:
        from pyspark.errors import PySparkException

        from ottla.engines.spark import cause

        try:
            found: WorkReport = part.work_report(spark, files, slowest=slowest)
        except PySparkException as error:
            raise Failure(cause(error)) from error
    return found


def _spark_part() -> Any:
    try:
        from ottla.spark import work_report
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise Failure("'ottla work report' needs the extra packages: pip install 'ottla[spark]'") from error
    return work_report
