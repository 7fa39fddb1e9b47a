"""`ottla lag board`: the Grafana board that belongs to the metrics."""

from __future__ import annotations

import click


@click.command()
def board() -> None:
    """Print the Grafana board as JSON.

    Load it in Grafana with Dashboards, New, Import, or put it into a folder that Grafana provisions. It asks which
    Prometheus to use, and works with the metrics of --metrics-family a or both.

    \b
    Examples:
      ottla lag board > ottla-lag.json
    """
    from importlib import resources

    text = (resources.files("ottla.operations.lag") / "board.json").read_text(encoding="utf-8")
    click.echo(text.rstrip())
