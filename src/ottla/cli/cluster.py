"""`ottla cluster ...`: the commands around `ottla.cluster.LocalCluster`.

They parse, call and print; what a cluster is and does is in the room `cluster`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from ottla import cluster as room  # its names are imported when they are used
from ottla.cli.options.bootstrap import DIR_VARIABLE
from ottla.cli.options.general import json_option, settings_option
from ottla.cli.values.json_text import json_text
from ottla.cli.views.cluster import JarProgress, announce_library, describe, others, overview
from ottla.cluster.pinned import DEFAULT_VERSION, versions
from ottla.errors import ConfigError
from ottla.text import printable

_Command = TypeVar("_Command", bound=Callable[..., Any])

_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    envvar=DIR_VARIABLE,
    show_envvar=True,
    help="Folder of all clusters' state and data.  [default: a folder of the user]",
)
_name_option = click.option("--name", default="default", show_default=True, help="Which cluster.")
_ids_argument = click.argument("ids", nargs=-1, required=True, type=click.IntRange(min=1), metavar="ID...")
_cache_option = click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="OTTLA_CACHE",
    show_envvar=True,
    help="Folder in which Kafka's jars are kept.  [default: the user's cache folder]",
)
_maven_option = click.option(
    "--maven-url",
    metavar="URL",
    envvar="OTTLA_MAVEN_URL",
    show_envvar=True,
    help="A mirror to fetch the jars from instead of Maven Central.",
)


def _cluster_options(command: _Command) -> _Command:
    return _name_option(_dir_option(command))


def _topics(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[room.TopicSpec, ...]:
    try:
        return tuple(room.TopicSpec.parse(value) for value in values)
    except ConfigError as exc:
        raise click.BadParameter(str(exc), context, parameter) from exc


_KEPT = "\n\t"
"""Of a broker's log, in which clients have themselves named."""


@click.group()
def cluster() -> None:
    """Real Kafka brokers on this machine, for development and tests.

    \b
    Examples:
      ottla cluster up --brokers 3 --topic clicks:6 --topic users:3:3:compact
      ottla cluster kill 2
      ottla cluster restart 2
      ottla cluster down

    Needs Java 17 or newer. The first start fetches Kafka's jars (about 56 MB) into the user's cache.
    """
    announce_library("ottla.cluster")


@cluster.command()
@click.option("--brokers", type=click.IntRange(1, 50), help="How many.  [default: 1]")
@_cluster_options
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=_topics,
    metavar="NAME[:PARTITIONS[:REPLICAS[:POLICY]]]",
    help="Create this topic; POLICY is delete, compact or compact,delete. Repeatable.",
)
@click.option("--redis", is_flag=True, help="Start a Redis as well.")
@click.option(
    "--secure", is_flag=True, help="SASL_SSL and SSL listeners, with certificates and users; nobody else comes in."
)
@click.option("--plaintext", is_flag=True, help="With --secure: an open plaintext listener as well.")
@click.option(
    "--kafka-version", type=click.Choice(versions()), help=f"Version of the brokers.  [default: {DEFAULT_VERSION}]"
)
@settings_option("Broker property. Repeatable.", example="message.max.bytes=2000000")
@click.option("--heap-mb", type=click.IntRange(min=128), help="Java heap of each broker, in MB.  [default: 512]")
@click.option("--timeout", type=click.FloatRange(min=1), default=120.0, show_default=True, help="Seconds to be ready.")
@_cache_option
@_maven_option
@json_option
def up(
    *,
    brokers: int | None,
    name: str,
    directory: Path | None,
    topics: tuple[room.TopicSpec, ...],
    redis: bool,
    secure: bool,
    plaintext: bool,
    kafka_version: str | None,
    settings: dict[str, str],
    heap_mb: int | None,
    timeout: float,
    cache: Path | None,
    maven_url: str | None,
    as_json: bool,
) -> None:
    """Start a cluster, or what of it does not run.

    Up to three brokers are also controllers. A cluster that was stopped with 'down --keep' goes on with its data.

    \b
    Examples:
      ottla cluster up
      ottla cluster up --brokers 3 --topic clicks:6:3 --redis
      ottla cluster up --name secure --secure --setting message.max.bytes=2000000
    """
    began = time.monotonic()
    with JarProgress() as progress:
        local = room.LocalCluster(
            name,
            brokers=brokers,
            topics=topics,
            redis=redis,
            secure=secure,
            plaintext=plaintext or None,
            dir=directory,
            version=kafka_version,
            settings=settings,
            heap_bytes=heap_mb << 20 if heap_mb is not None else None,
            timeout=timeout,
            cache_dir=cache,
            maven_url=maven_url,
            progress=progress,
        )
        started = local.up()
    status = local.status()
    if as_json:
        click.echo(json_text(status.as_dict(), indent=1))
        return
    click.echo(f"started in {time.monotonic() - began:.1f} s" if started else "it was running already")
    click.echo(describe(status))


@cluster.command()
@_cluster_options
@click.option("--keep", is_flag=True, help="Keep the data: the next 'up' goes on with it.")
@click.option("--all", "everything", is_flag=True, help="Every cluster of the folder.")
def down(*, name: str, directory: Path | None, keep: bool, everything: bool) -> None:
    """Stop a cluster and delete its data.

    Also removes what a crashed command or program left behind.

    \b
    Examples:
      ottla cluster down
      ottla cluster down --keep
      ottla cluster down --all
    """
    names = [status.name for status in room.LocalCluster.all(directory)] if everything else [name]
    for one in names:
        existed = room.LocalCluster(one, dir=directory).down(room.Data.KEEP if keep else room.Data.REMOVE)
        what = "is stopped, its data is kept" if keep else "is gone, and its data"
        click.echo(f"cluster '{one}' {what}" if existed else f"there is no cluster '{one}'")
    if not names:
        click.echo("there is no cluster")


@cluster.command()
@_cluster_options
@json_option
@click.pass_context
def status(context: click.Context, *, name: str, directory: Path | None, as_json: bool) -> None:
    """Show a cluster: its addresses, processes, memory, users.

    Ends with 0 when all of it runs, with 1 otherwise.

    \b
    Examples:
      ottla cluster status
      ottla cluster status --json | jq -r .bootstrap
    """
    found = room.LocalCluster(name, dir=directory).status()
    click.echo(json_text(found.as_dict(), indent=1) if as_json else describe(found))
    if found.condition is room.Condition.ABSENT and not as_json:
        click.echo(others(room.LocalCluster.all(directory)))
    context.exit(0 if found.condition is room.Condition.RUNNING else 1)


@cluster.command("list")
@_dir_option
@json_option
def list_clusters(*, directory: Path | None, as_json: bool) -> None:
    """List every cluster of the folder.

    \b
    Example:
      ottla cluster list --json
    """
    found = room.LocalCluster.all(directory)
    click.echo(json_text([one.as_dict() for one in found], indent=1) if as_json else overview(found))


@cluster.command()
@_cluster_options
def add(*, name: str, directory: Path | None) -> None:
    """Add one broker to a running cluster and print its id.

    \b
    Example:
      ottla cluster add
    """
    click.echo(room.LocalCluster(name, dir=directory).add())


@cluster.command()
@_ids_argument
@_cluster_options
def kill(*, ids: tuple[int, ...], name: str, directory: Path | None) -> None:
    """End brokers with SIGKILL, as a power cut would.

    \b
    Example:
      ottla cluster kill 2
    """
    _act(ids, room.LocalCluster(name, dir=directory).kill, "killed")


@cluster.command()
@_ids_argument
@_cluster_options
def stop(*, ids: tuple[int, ...], name: str, directory: Path | None) -> None:
    """Stop brokers gracefully: they hand their partitions over first.

    \b
    Example:
      ottla cluster stop 2
    """
    _act(ids, room.LocalCluster(name, dir=directory).stop, "stopped")


@cluster.command()
@_ids_argument
@_cluster_options
def restart(*, ids: tuple[int, ...], name: str, directory: Path | None) -> None:
    """Start brokers again, stopping those that run, and wait until the cluster has them back.

    \b
    Examples:
      ottla cluster restart 2
      ottla cluster restart 1 2 3
    """
    _act(ids, room.LocalCluster(name, dir=directory).restart, "back")


@cluster.command()
@_ids_argument
@_cluster_options
def freeze(*, ids: tuple[int, ...], name: str, directory: Path | None) -> None:
    """Make brokers stand still (SIGSTOP): connections stay open, nothing is answered.

    \b
    Example:
      ottla cluster freeze 2
    """
    _act(ids, room.LocalCluster(name, dir=directory).freeze, "frozen")


@cluster.command()
@_ids_argument
@_cluster_options
def thaw(*, ids: tuple[int, ...], name: str, directory: Path | None) -> None:
    """Let frozen brokers go on.

    \b
    Example:
      ottla cluster thaw 2
    """
    _act(ids, room.LocalCluster(name, dir=directory).thaw, "going on")


@cluster.command()
@click.argument("broker", type=click.IntRange(min=1), metavar="ID")
@_cluster_options
@click.option("--lines", type=click.IntRange(min=1), default=100, show_default=True, help="How many of the last lines.")
@click.option("--follow", is_flag=True, help="Go on printing what is added, until Ctrl-C.")
@click.option("--path", "only_path", is_flag=True, help="Print where the log is instead.")
def logs(*, broker: int, name: str, directory: Path | None, lines: int, follow: bool, only_path: bool) -> None:
    """Print the log of one broker.

    \b
    Examples:
      ottla cluster logs 1
      ottla cluster logs 1 --follow
      less $(ottla cluster logs 1 --path)
    """
    log = room.LocalCluster(name, dir=directory).logs(broker)
    if only_path:
        click.echo(log)
        return
    with log.open(encoding="utf-8", errors="replace") as file:
        click.echo(printable("".join(file.readlines()[-lines:]), keep=_KEPT), nl=False)
        for text in iter(partial(file.read, 1 << 16), None) if follow else ():
            click.echo(printable(text, keep=_KEPT), nl=False)
            if not text:
                time.sleep(0.2)


def _act(ids: tuple[int, ...], act: Callable[..., None], done: str) -> None:
    act(*ids)
    click.echo(f"broker{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}: {done}")
