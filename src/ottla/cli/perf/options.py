"""Options that the performance tests share, and the values that they give: a `Workload`, peers, where reports go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import json_option, timeout_option, topics_argument
from ottla.cli.options.security import security_options
from ottla.cli.options.types import Duration, Integer, Size, parsed
from ottla.cli.values.rates import parse_record_rate

_Command = TypeVar("_Command", bound=Callable[..., Any])
PEERS = ("confluent", "java")


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in PEERS:
            raise ValueError(f"{name!r} is not a client to compare with: {', '.join(PEERS)} are")
    return names


def _in_order(options: list[Callable[[Any], Any]]) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        wrapped: Any = command
        for option in reversed(options):
            wrapped = option(wrapped)
        decorated: _Command = wrapped
        return decorated

    return decorate


records_option = click.option(
    "--records", type=Integer(1), help="How many records to count.  [default: as many as --duration allows]"
)
duration_option = click.option("--duration", "seconds", type=Duration(0.001), help="How long to measure.")
size_option = click.option(
    "--size", "record_bytes", type=Size(1), default="100B", show_default=True, help="Size of a record's value."
)
partitions_option = click.option(
    "--partitions", type=Integer(1, 100_000), default=1, show_default=True, help="Of topics that are created."
)
replicas_option = click.option(
    "--replicas", type=Integer(1), help="Of topics that are created.  [default: that of the brokers]"
)
rate_option = click.option(
    "--rate",
    metavar="RATE",
    callback=parsed(parse_record_rate),
    help="Records per second, as 1000 or 50k/s; latency then counts from when a record was due.",
)
threads_option = click.option(
    "--threads", type=Integer(1, 256), default=1, show_default=True, help="Threads, each with a client of its own."
)
warmup_option = click.option(
    "--warmup", type=Duration(0.0, 3600.0), default="1s", show_default=True, help="Do the same for this long before."
)
codec_option = click.option(
    "--codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compression of batches.",
)
acks_option = click.option(
    "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True, help="Acknowledgements."
)
batch_option = click.option(
    "--batch-size", "batch_bytes", type=Size(1), default="1MB", show_default=True, help="Largest batch."
)
existing_option = click.option("--existing", is_flag=True, help="Write into topics that exist; the records stay there.")
beside_option = click.option(
    "--beside",
    metavar="CLIENT,...",
    callback=parsed(_peers),
    help="Run the same by confluent (confluent-kafka) and java (Kafka's own tools), and compare.",
)
html_option = click.option(
    "--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Also write a page with plots."
)


def linger_option(default: str) -> Callable[[_Command], _Command]:
    """Give a command `--linger DURATION` with this default."""
    return click.option(
        "--linger", type=Duration(0.0, 60.0), default=default, show_default=True, help="How long a batch may wait."
    )


def perf_options(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Give a command TOPIC..., these options, `--html`, `--json`, and those of a connection."""
    shared = [html_option, json_option, bootstrap_option, security_options, timeout_option()]
    return _in_order([topics_argument, *options, *shared])


def sides_options(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Give a command TOPIC..., these options, `--html`, `--json` and `--timeout`, without `--bootstrap`."""
    return _in_order([topics_argument, *options, html_option, json_option, timeout_option()])
