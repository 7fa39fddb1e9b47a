"""`ottla work report`: what a fleet has done, from the event files of its nodes, aggregated by Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla._lazy import EXTRAS
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.options.common import json_option, master_option
from ottla.cli.options.types import Integer
from ottla.cli.output.tables import terminal_width
from ottla.cli.terminal.interruption import Interrupted, Interruption
from ottla.cli.terminal.spark import spark_session
from ottla.cli.work.report_page import report_html, report_svg, report_text

if TYPE_CHECKING:
    from ottla.spark.work_report import WorkReport

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("path")
@click.option("--html", "page", type=_FILE, metavar="FILE", help="Also write a page with the chart and the tables.")
@click.option("--svg", "chart", type=_FILE, metavar="FILE", help="Also write the chart: records by hour and host.")
@click.option("--slowest", type=Integer(0, 10_000), default=10, show_default=True, help="List the N slowest units.")
@master_option
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
    """Report what a fleet has done: work by host and hour, slow units, retries and failures.

    PATH is a folder of 'ottla work run --events', a file of it, or a glob pattern. Unreadable lines are counted and
    skipped. Needs Spark: pip install 'ottla[spark]'.

    \b
    Examples:
      ottla work report /var/log/fleet
      ottla work report /var/log/fleet --html fleet.html
      ottla work report '/logs/*/events-*' --json --master spark://host:7077
    """
    for option, file in (("--html", page), ("--svg", chart)):
        if file is not None and not file.parent.is_dir():
            raise UsageError(f"{option} {file}: no folder {file.parent}")
    with Interruption() as interruption:
        try:
            result = interruption.wait(lambda: _report(path, slowest, master))
        except Interrupted:
            context.exit(interruption.exit_code)
    if page is not None:
        page.write_text(report_html(result))
    if chart is not None:
        chart.write_text(report_svg(result))
    click.echo(json.dumps(result.to_json()) if as_json else report_text(result, width=terminal_width()))


def _report(path: str, slowest: int, master: str | None) -> WorkReport:
    work_report = _import_report()
    files = work_report.find_files(path)
    with spark_session("ottla work report", master, {"spark.log.level": "OFF"}) as spark:
        from pyspark.errors import PySparkException

        from ottla.engines.spark import cause

        try:
            result: WorkReport = work_report.work_report(spark, files, slowest=slowest)
        except PySparkException as error:
            raise CommandFailed(cause(error)) from error
    return result


def _import_report() -> Any:
    try:
        from ottla.spark import work_report
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS["spark"]:
            raise
        raise CommandFailed("'ottla work report' needs extra packages: pip install 'ottla[spark]'") from error
    return work_report
