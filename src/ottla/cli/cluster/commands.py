"""`ottla cluster`: the commands around `ottla.cluster.LocalCluster`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from ottla import cluster as room  # its names are imported when they are used
from ottla.cli.cluster.view import JarProgress, announce_library, describe, others, overview, plain_status
from ottla.cli.completion.values import complete_clusters, complete_local_brokers
from ottla.cli.options.common import json_option, settings_option, timeout_option
from ottla.cli.options.confirmation import confirm, dry_run_option, yes_option
from ottla.cli.options.old import old_spelling
from ottla.cli.options.types import Integer, Size
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width
from ottla.cluster.pinned import DEFAULT_VERSION, versions
from ottla.default_address import DIR_VARIABLE
from ottla.errors import ConfigError
from ottla.text import printable

_Command = TypeVar("_Command", bound=Callable[..., Any])

_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    envvar=DIR_VARIABLE,
    show_envvar=True,
    help="Folder for state and data of all clusters.  [default: a folder of the user]",
)
_name_option = click.option(
    "--name", default="default", show_default=True, shell_complete=complete_clusters, help="Name of the cluster."
)
_ids_argument = click.argument(
    "ids", nargs=-1, required=True, type=Integer(1), metavar="ID...", shell_complete=complete_local_brokers
)
_cache_option = click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="OTTLA_CACHE",
    show_envvar=True,
    help="Folder for Kafka's jars.  [default: the user's cache folder]",
)
_maven_option = click.option(
    "--maven-url",
    metavar="URL",
    envvar="OTTLA_MAVEN_URL",
    show_envvar=True,
    help="Mirror to download the jars from, instead of Maven Central.",
)


def _cluster_options(command: _Command) -> _Command:
    return _name_option(_dir_option(command))


def _topics(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[room.TopicSpec, ...]:
    try:
        return tuple(room.TopicSpec.parse(value) for value in values)
    except ConfigError as exc:
        raise click.BadParameter(str(exc), context, parameter) from exc


_KEPT = "\n\t"
"""Control characters of a broker's log that are printed; others may come from the names of clients."""


@click.group()
def cluster() -> None:
    """Run real Kafka brokers on this machine, for development and tests.

    \b
    Examples:
      ottla cluster up --brokers 3 --topic clicks:6 --topic users:3:3:compact
      ottla cluster kill 2
      ottla cluster restart 2
      ottla cluster down --yes

    Needs Java 17 or newer. The first start downloads Kafka's jars (about 56 MB) into the user's cache.
    """
    announce_library("ottla.cluster")


@cluster.command()
@click.option("--brokers", type=Integer(1, 50), help="Number of brokers.  [default: 1]")
@_cluster_options
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=_topics,
    metavar="NAME[:PARTITIONS[:REPLICAS[:POLICY]]]",
    help="Create this topic; POLICY is delete, compact or compact,delete. Repeatable.",
)
@click.option("--redis", is_flag=True, help="Also start a Redis.")
@click.option("--secure", is_flag=True, help="SASL_SSL and SSL listeners only, with certificates and users.")
@click.option("--plaintext", is_flag=True, help="With --secure: also a plaintext listener.")
@click.option(
    "--kafka-version", type=click.Choice(versions()), help=f"Version of the brokers.  [default: {DEFAULT_VERSION}]"
)
@settings_option("Broker property. Repeatable.", example="message.max.bytes=2000000")
@click.option("--heap-size", type=Size(128 << 20), help="Java heap of each broker.  [default: 512MiB]")
@old_spelling("--heap-mb", "--heap-size", form="{}MiB", metavar="N")
@click.option(
    "--port",
    type=Integer(1, 65535),
    help="Port for clients of the first broker; the others follow by id.  [default: free ports]",
)
@timeout_option("2m", minimum=1)
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
    heap_size: int | None,
    port: int | None,
    timeout: float,
    cache: Path | None,
    maven_url: str | None,
    as_json: bool,
) -> None:
    """Start a cluster, or the parts of it that do not run.

    Up to three brokers are also controllers. A cluster that was stopped with 'down --keep' still has its data.

    \b
    Examples:
      ottla cluster up
      ottla cluster up --port 9092
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
            heap_bytes=heap_size,
            port=port,
            timeout=timeout,
            cache_dir=cache,
            maven_url=maven_url,
            progress=progress,
        )
        started = local.up()
    status = local.status()
    if as_json:
        click.echo(json_text(plain_status(status), indent=1))
        return
    click.echo(f"started in {time.monotonic() - began:.1f} s" if started else "already running")
    click.echo(describe(status, is_styled=True))


@cluster.command()
@_cluster_options
@click.option("--keep", is_flag=True, help="Keep the data for the next 'up'.")
@click.option("--all", "everything", is_flag=True, help="All clusters of the folder.")
@yes_option
@dry_run_option
@json_option
def down(
    *, name: str, directory: Path | None, keep: bool, everything: bool, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Stop a cluster and delete its data. Asks for confirmation, unless --keep keeps the data.

    Also removes what a crashed command or program left behind.

    \b
    Examples:
      ottla cluster down
      ottla cluster down --keep
      ottla cluster down --all --yes
    """
    names = [status.name for status in room.LocalCluster.all(directory)] if everything else [name]
    existing = [
        status for status in (room.LocalCluster(each, dir=directory).status() for each in names) if _exists(status)
    ]
    verb = "stop" if keep else "stop and delete"
    summary = ", ".join(f"'{status.name}' ({status.condition}, {_brokers(len(status.brokers))})" for status in existing)
    found = {each: any(status.name == each for status in existing) for each in names}
    if existing and not dry_run and not keep:
        confirm(f"this stops and deletes {summary}", yes=yes)
    if existing and dry_run and not as_json:
        click.echo(f"would {verb} {summary}")
    for each in names:
        if not dry_run:
            found[each] = room.LocalCluster(each, dir=directory).down(room.Data.KEEP if keep else room.Data.REMOVE)
        outcome = "is stopped, its data is kept" if keep else "and its data are deleted"
        if not as_json and not (dry_run and found[each]):
            click.echo(f"cluster '{each}' {outcome}" if found[each] else f"no cluster '{each}'")
    if as_json:
        shown = [{"name": each, "existed": existed} for each, existed in found.items()]
        click.echo(json_text({"stopped": not dry_run, "data_kept": keep, "clusters": shown}))
    elif not names:
        click.echo("no cluster")


def _exists(status: room.ClusterStatus) -> bool:
    return status.condition is not room.Condition.ABSENT


@cluster.command()
@_cluster_options
@json_option
@click.pass_context
def status(context: click.Context, *, name: str, directory: Path | None, as_json: bool) -> None:
    """Show a cluster: its addresses, processes, memory, users.

    Exits with 0 if all of it runs, else with 1.

    \b
    Examples:
      ottla cluster status
      ottla cluster status --json | jq -r .bootstrap
    """
    current = room.LocalCluster(name, dir=directory).status()
    click.echo(json_text(plain_status(current), indent=1) if as_json else describe(current, is_styled=True))
    if not _exists(current) and not as_json:
        click.echo(others(room.LocalCluster.all(directory)))
    context.exit(0 if current.condition is room.Condition.RUNNING else 1)


@cluster.command("list")
@_dir_option
@json_option
def list_clusters(*, directory: Path | None, as_json: bool) -> None:
    """List all clusters of the folder.

    \b
    Example:
      ottla cluster list --json
    """
    statuses = room.LocalCluster.all(directory)
    if as_json:
        click.echo(json_text([plain_status(each) for each in statuses], indent=1))
    else:
        click.echo(overview(statuses, width=terminal_width()))


@cluster.command()
@_cluster_options
@json_option
def add(*, name: str, directory: Path | None, as_json: bool) -> None:
    """Add one broker to a running cluster and print its id.

    \b
    Example:
      ottla cluster add
    """
    broker = room.LocalCluster(name, dir=directory).add()
    click.echo(json_text({"broker": broker}) if as_json else broker)


@cluster.command()
@_ids_argument
@_cluster_options
@json_option
def kill(*, ids: tuple[int, ...], name: str, directory: Path | None, as_json: bool) -> None:
    """Kill brokers with SIGKILL, like a power cut.

    \b
    Example:
      ottla cluster kill 2
    """
    _act(ids, room.LocalCluster(name, dir=directory).kill, "killed", as_json=as_json)


@cluster.command()
@_ids_argument
@_cluster_options
@json_option
def stop(*, ids: tuple[int, ...], name: str, directory: Path | None, as_json: bool) -> None:
    """Stop brokers gracefully: they move their leaderships first.

    \b
    Example:
      ottla cluster stop 2
    """
    _act(ids, room.LocalCluster(name, dir=directory).stop, "stopped", as_json=as_json)


@cluster.command()
@_ids_argument
@_cluster_options
@json_option
def restart(*, ids: tuple[int, ...], name: str, directory: Path | None, as_json: bool) -> None:
    """Restart brokers, and wait until they have rejoined the cluster.

    \b
    Examples:
      ottla cluster restart 2
      ottla cluster restart 1 2 3
    """
    _act(ids, room.LocalCluster(name, dir=directory).restart, "back", as_json=as_json)


@cluster.command()
@_ids_argument
@_cluster_options
@json_option
def freeze(*, ids: tuple[int, ...], name: str, directory: Path | None, as_json: bool) -> None:
    """Freeze brokers with SIGSTOP. Connections stay open, and nothing is answered.

    \b
    Example:
      ottla cluster freeze 2
    """
    _act(ids, room.LocalCluster(name, dir=directory).freeze, "frozen", as_json=as_json)


@cluster.command()
@_ids_argument
@_cluster_options
@json_option
def thaw(*, ids: tuple[int, ...], name: str, directory: Path | None, as_json: bool) -> None:
    """Resume frozen brokers.

    \b
    Example:
      ottla cluster thaw 2
    """
    _act(ids, room.LocalCluster(name, dir=directory).thaw, "running", as_json=as_json)


@cluster.command()
@click.argument("broker", type=Integer(1), metavar="ID", shell_complete=complete_local_brokers)
@_cluster_options
@click.option("--lines", type=Integer(1), default=100, show_default=True, help="Number of lines from the end.")
@click.option("--follow", is_flag=True, help="Do not end: print new lines until Ctrl-C.")
@click.option("--path", "only_path", is_flag=True, help="Print the path of the log instead.")
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


def _act(ids: tuple[int, ...], act: Callable[..., None], done: str, *, as_json: bool) -> None:
    act(*ids)
    if as_json:
        click.echo(json_text({"brokers": list(ids), "state": done}))
    else:
        click.echo(f"broker{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}: {done}")


def _brokers(count: int) -> str:
    return f"{count} broker{'' if count == 1 else 's'}"
