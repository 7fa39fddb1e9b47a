"""How clusters are shown: a status as text, a download as a bar, notices of the library as lines."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.output.bars import bar
from ottla.cli.output.styles import Style, Styled, paint
from ottla.cli.output.tables import table
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.cluster import ClusterStatus

_STYLES = {
    "running": Style.GOOD,
    "starting": Style.WARNING,
    "degraded": Style.WARNING,
    "frozen": Style.WARNING,
    "orphaned": Style.WARNING,
    "stale": Style.BAD,
    "dead": Style.BAD,
    "stopped": Style.FAINT,
    "absent": Style.FAINT,
}
"""By the condition of a cluster, and the state of a process."""
_LINE_EVERY = 10.0
"""Seconds between lines about a download if stderr is not a terminal."""


class JarProgress:
    """Shows a download on stderr: as a bar on a terminal, else as a line every few seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._drawn = False
        self._printed_at = 0.0

    def __enter__(self) -> JarProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            click.echo(err=True)

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        share = done_bytes / max(total_bytes, 1)
        amount = f"{done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB"
        if self._terminal:
            click.echo(f"\rdownloading Kafka's jars {bar(share)}  {amount} ", nl=False, err=True)
            self._drawn = True
        elif done_bytes >= total_bytes or time.monotonic() - self._printed_at > _LINE_EVERY:
            self._printed_at = time.monotonic()
            click.echo(f"downloading Kafka's jars: {amount}", err=True)


def announce_library(name: str) -> None:
    """Print the log messages of a part of the library as plain lines on stderr."""
    logger = logging.getLogger(name)
    if not any(isinstance(handler, _Notices) for handler in logger.handlers):
        logger.addHandler(_Notices())
        logger.setLevel(logging.INFO)
        logger.propagate = False


class _Notices(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Print one notice."""
        click.echo(printable(record.getMessage(), keep="\n"), err=True)


def plain_status(status: ClusterStatus) -> dict[str, Any]:
    """Return a cluster as plain values, ready for JSON."""
    return status.as_dict() | {"note": _note(status)}


def _note(status: ClusterStatus) -> str:
    from ottla.cli.advice import cluster_words
    from ottla.errors import reworded

    return reworded(status.note, cluster_words(status.name))


def describe(status: ClusterStatus, *, is_styled: bool = False) -> str:
    """Return a cluster for people."""
    version = f", Kafka {status.version}" if status.version else ""
    condition = paint(status.condition, _STYLES.get(status.condition), on=is_styled)
    lines = [f"cluster '{status.name}' is {condition}{version}"]
    if status.note:
        lines.append(f"  {_note(status)}")
    rows = {
        "bootstrap": status.bootstrap,
        "SASL_SSL": status.secure_bootstrap,
        "SSL": status.ssl_bootstrap,
        "CA file": status.ca_file,
        "users": ", ".join(f"{user} / {password}" for user, password in status.users.items()),
        "redis": _redis(status),
        "folder": status.directory if status.brokers else None,
    }
    lines += [f"  {name:<10} {value}" for name, value in rows.items() if value]
    for broker in status.brokers:
        pid = f"  pid {broker.pid}  {_mb(broker.memory_bytes)}" if broker.pid is not None else ""
        life = paint(f"{broker.life.value:<8}", _STYLES.get(broker.life.value), on=is_styled)
        lines.append(f"  broker {broker.id:<3} {life} {broker.address:<16} {broker.roles:<18}{pid}")
    return "\n".join(lines)


def others(statuses: Sequence[ClusterStatus]) -> str:
    """Return a hint for a cluster name that does not exist."""
    if not statuses:
        return "'ottla cluster up' starts one"
    names = ", ".join(f"'{status.name}' ({status.condition})" for status in statuses)
    return f"existing clusters: {names}; choose one with --name"


def overview(statuses: Sequence[ClusterStatus], *, width: int | None = None) -> str:
    """Return several clusters, one on each line."""
    if not statuses:
        return "no cluster: 'ottla cluster up' starts one"
    rows = [
        (
            status.name,
            Styled(status.condition, _STYLES[status.condition]) if status.condition in _STYLES else status.condition,
            str(len(status.brokers)),
            status.bootstrap or "-",
        )
        for status in statuses
    ]
    return table(("cluster", "state", "brokers", "bootstrap"), rows, width=width)


def _redis(status: ClusterStatus) -> str:
    if status.redis is None:
        return ""
    return f"{status.redis.url} ({status.redis.life.value}, {_mb(status.redis.memory_bytes)})"


def _mb(size: int | None) -> str:
    return f"{size / 1e6:.0f} MB" if size is not None else "-"
