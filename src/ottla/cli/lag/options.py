"""Options that the commands of `ottla lag` share: which groups and topics, and which readers that are no groups."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.completion.values import complete_groups, complete_topics
from ottla.cli.errors import UsageError
from ottla.cli.options.old import old_flag
from ottla.cli.options.types import parsed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.net import Cluster
    from ottla.operations.lag.poller import Poller
    from ottla.operations.lag.values import GroupSample

_ALLOCATIONS = 100_000
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error


groups_argument = click.argument("groups", nargs=-1, metavar="[GROUP...]", shell_complete=complete_groups)


def reading_options(command: _Command) -> _Command:
    """Give a command what decides which readers and topics are shown."""
    for option in reversed(
        (
            click.option(
                "--topic",
                "topics",
                metavar="PATTERN",
                callback=parsed(_pattern),
                help="Only topics whose whole name matches this regular expression.",
            ),
            click.option(
                "--internal", "with_internal", is_flag=True, help="Also the groups in which Ottla keeps positions."
            ),
            click.option(
                "--spark-checkpoint",
                "checkpoints",
                multiple=True,
                type=click.Path(path_type=Path),
                metavar="FOLDER",
                help="Also the streaming query with this checkpoint. Repeatable.",
            ),
            click.option(
                "--journal",
                shell_complete=complete_topics,
                default="ottla-mirror",
                show_default=True,
                metavar="TOPIC",
                help="Journal of the mirrors to this cluster. They are shown if it exists.",
            ),
            click.option(
                "--isolation",
                type=click.Choice(["read_committed", "read_uncommitted"]),
                default="read_uncommitted",
                show_default=True,
                help="Where a log ends: before the first open transaction, or behind everything.",
            ),
            old_flag("--all", "--internal"),
        )
    ):
        command = option(command)
    return command


@contextmanager
def rare_collections() -> Iterator[None]:
    """Have the garbage collector look for cycles rarely: a poll makes as many objects as there are partitions.

    Without it, half of a poll's time is spent to find that all of them are in use. For a process of its own.
    """
    before = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def make_poller(
    cluster: Cluster,
    *,
    groups: tuple[str, ...],
    topics: re.Pattern[str] | None,
    with_internal: bool,
    isolation: str,
    all_topics: bool = False,
) -> Poller:
    """Return what polls the cluster."""
    from ottla.fetch.options import parse_isolation
    from ottla.operations.lag.names import Selection
    from ottla.operations.lag.poller import Poller

    selection = Selection(frozenset(groups), topics, with_internal)
    return Poller(cluster, selection=selection, isolation=parse_isolation(isolation), all_topics=all_topics)


def make_readers(
    resources: ExitStack,
    cluster: Cluster,
    *,
    groups: tuple[str, ...],
    topics: re.Pattern[str] | None,
    checkpoints: tuple[Path, ...],
    journal: str,
) -> Callable[[], Sequence[GroupSample]]:
    """Return what reads checkpoints and mirrors. Raises `UsageError` for a folder that is no checkpoint."""
    import time
    from dataclasses import replace

    from ottla.errors import ConfigError
    from ottla.operations.lag.sources import Checkpoint, Mirrors, readers

    try:
        found = Checkpoint.at_all(checkpoints)
    except ConfigError as error:
        raise UsageError(f"--spark-checkpoint: {error}") from error
    mirrors = Mirrors(cluster, journal=journal)
    resources.callback(mirrors.close)
    read = readers(found, mirrors, clock=time.time)

    def selected() -> list[GroupSample]:
        samples = [sample for sample in read() if not groups or sample.name in groups]
        if topics is None:
            return samples
        return [
            replace(
                sample,
                committed={tp: offset for tp, offset in sample.committed.items() if topics.fullmatch(tp.topic)},
                ends=None
                if sample.ends is None
                else {tp: end for tp, end in sample.ends.items() if topics.fullmatch(tp.topic)},
            )
            for sample in samples
        ]

    return selected
