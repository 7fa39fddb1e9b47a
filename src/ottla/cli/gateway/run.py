"""`ottla gateway run`: a gateway in this process, until a signal."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.gateway.handover import given_sockets, notify, restart
from ottla.cli.options.profile import is_profile_given, profile_option_if
from ottla.cli.options.security import security_options
from ottla.cli.options.types import Size, parsed
from ottla.cli.terminal.stopping import Stopping
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.gateway.datagram.settings import DatagramSettings
    from ottla.gateway.running import Gateway
    from ottla.gateway.settings import Listen, Settings
    from ottla.gateway.syslog.settings import SyslogSettings

_WAIT_SECONDS = 0.1


class SyslogPlace(NamedTuple):
    """Where to take syslog: the kind (`udp`, `tcp`, `unix`) and the address, for `unix` a path."""

    kind: str
    where: Listen | str


def _listen(text: str) -> Listen:
    from ottla.gateway.settings import parse_listen

    return parse_listen(text)


def _syslog_place(text: str) -> SyslogPlace:
    from ottla.gateway.settings import parse_listen

    kind, separator, where = text.partition(":")
    if kind not in ("udp", "tcp", "unix") or not separator or not where:
        raise ValueError(f"{text!r} is not a place for syslog: write udp:PORT, tcp:HOST:PORT or unix:PATH")
    return SyslogPlace(kind, where if kind == "unix" else parse_listen(where))


@click.command()
@click.option(
    "--http",
    metavar="[HOST:]PORT",
    callback=parsed(_listen),
    help="Serve HTTP there, on this machine unless HOST is given.",
)
@click.option(
    "--ops", metavar="[HOST:]PORT", callback=parsed(_listen), help="Serve health, metrics and /openapi.json there."
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Take messages in dory's format at this unix datagram socket.",
)
@click.option(
    "--syslog",
    multiple=True,
    metavar="PLACE",
    callback=parsed(_syslog_place),
    help="Take syslog there: udp:[HOST:]PORT, tcp:[HOST:]PORT or unix:PATH. Repeatable; TLS and rules need --config.",
)
@click.option(
    "--syslog-topic", metavar="TOPIC", shell_complete=complete_topics, help="Of syslog messages.  [default: syslog]"
)
@click.option(
    "--spool",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep records in DIR until they are acknowledged; those already there are delivered first.",
)
@click.option("--name", metavar="NAME", help="Of this gateway; its idempotency keys belong to it.  [default: default]")
@click.option("--audit-tier", metavar="NAME", help="Count what is acknowledged for the audit, as this tier.")
@click.option(
    "--compat",
    multiple=True,
    type=click.Choice(["kafboy", "flasfka"]),
    help="Serve the routes of this project, too. Repeatable.",
)
@click.option(
    "--group-store",
    metavar="URL",
    help="Keep positions and leases of group reads there: sqlite:///PATH, or redis://... for several gateways.",
)
@click.option("--max-record-size", type=Size(1, (1 << 30) - 1), help="Largest record to take.  [default: 1MB]")
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="TOML file with settings.")
@click.option(
    "--insecure-anyone-may-write",
    "is_insecure",
    is_flag=True,
    help="Listen beyond this machine without logins and rules.",
)
@click.option(
    "--bootstrap",
    metavar="HOST:PORT,...",
    help="Brokers to connect to first.  [default: those of --config; OTTLA_BOOTSTRAP, the default profile, the running"
    " local cluster]",
)
@profile_option_if(lambda arguments: arguments.get("config") is None)
@security_options
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    config: Path | None,
    bootstrap: str | None,
    security: Security,
    **given: Any,
) -> None:
    """Run a gateway until Ctrl-C or SIGTERM.

    A request is answered when the brokers have acknowledged its records; with --spool also when the disk has them, if
    the client asks for that. The first signal stops it in order: no new connections, requests under way end, records
    are flushed, what is left stays in the spool. SIGUSR2 does the same and starts the program again on the same
    sockets: connections wait meanwhile, none is refused. Exit codes: 0 after a signal, 1 if it cannot run, 2 usage
    error.

    \b
    Examples:
      ottla gateway run --http 8082
      ottla gateway run --http 8082 --ops 8083 --spool /var/lib/ottla/spool
      ottla gateway run --socket /run/ottla/gateway.sock --syslog udp:5514 --syslog tcp:5514 --syslog-topic logs
      ottla gateway run --config /etc/ottla/gateway.toml
    """
    from ottla.gateway.running import Gateway

    sockets = given_sockets(os.environ)
    settings = _settings(context, config, bootstrap, security, given)
    is_listening = (settings.http, settings.socket, settings.syslog) != (None, None, None)
    if not is_listening and not set(sockets) - {"ops"}:
        raise UsageError("nothing to listen on: pass --http PORT, --socket PATH or --syslog PLACE")
    gateway = Gateway(settings, sockets=sockets)
    restarting = _Asked(signal.SIGUSR2)
    with Stopping("stopping: finishing requests and flushing records; press Ctrl-C again to abort") as stopping:
        gateway.start()
        _announce(gateway)
        notify(os.environ, "READY=1")
        while not stopping.asked:
            if restarting.is_asked:
                restarting.is_asked = False
                if _may_restart(context, config, bootstrap, security, given):
                    break
            time.sleep(_WAIT_SECONDS)
        notify(os.environ, "STOPPING=1" if stopping.asked else "STATUS=restarting")
        gateway.stop(keep_sockets=not stopping.asked)
    if not stopping.asked:
        restart(gateway.sockets, os.environ)


class _Asked:
    """Notes a signal."""

    def __init__(self, number: signal.Signals) -> None:
        self.is_asked = False
        signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True


def _settings(
    context: click.Context, config: Path | None, bootstrap: str | None, security: Security, given: dict[str, Any]
) -> Settings:
    from dataclasses import replace

    from ottla.cli.options.bootstrap import check_bootstrap, find_bootstrap
    from ottla.config import PLAINTEXT
    from ottla.engines.fleet.store import open_store
    from ottla.errors import ConfigError
    from ottla.gateway.settings import CLIENT, Settings
    from ottla.gateway.settings_file import read_settings
    from ottla.net.access import ClusterAccess
    from ottla.tally.settings import Audit

    if given["group_store"] is not None:
        try:
            open_store(given["group_store"], "gateway").close()
        except ConfigError as error:
            raise UsageError(f"--group-store: {error}") from error
    changed: dict[str, Any] = {name: given[name] for name in ("http", "ops", "name")}
    changed["spool"] = given["spool"]
    changed["max_record_bytes"] = given["max_record_size"]
    changed["socket"], changed["syslog"] = _silent(given)
    changed["group_store"] = given["group_store"]
    changed["compat"] = frozenset(given["compat"]) or None
    changed["is_insecure"] = given["is_insecure"] or None
    if given["audit_tier"] is not None:
        changed["audit"] = Audit(tier=given["audit_tier"])
    known = {name: value for name, value in changed.items() if value is not None}
    if config is not None:
        if security != PLAINTEXT or is_profile_given(context):
            raise UsageError("--config has TLS and SASL of the cluster in its table [cluster]: leave the options out")
        if bootstrap is not None:
            check_bootstrap(bootstrap, context)
        return replace(read_settings(config, bootstrap=bootstrap, environment=os.environ), **known)
    access = ClusterAccess(bootstrap=find_bootstrap(context, bootstrap), security=security, client_id=CLIENT)
    return Settings(cluster=access, **known)


def _silent(given: dict[str, Any]) -> tuple[DatagramSettings | None, SyslogSettings | None]:
    """Return the settings of the listeners that answer nothing, as far as options name them."""
    from ottla.errors import ConfigError
    from ottla.gateway.datagram.settings import DatagramSettings
    from ottla.gateway.passing import DEFAULT_TOPIC
    from ottla.gateway.syslog.settings import SyslogSettings

    to_socket = None if given["socket"] is None else DatagramSettings(path=given["socket"])
    places: tuple[SyslogPlace, ...] = given["syslog"]
    if not places:
        if given["syslog_topic"] is not None:
            raise UsageError("--syslog-topic needs --syslog")
        return to_socket, None
    paths = [Path(str(place.where)) for place in places if place.kind == "unix"]
    if len(paths) > 1:
        raise UsageError("--syslog takes one unix:PATH")
    by_kind = {kind: tuple(place.where for place in places if place.kind == kind) for kind in ("udp", "tcp")}
    try:
        settings = SyslogSettings(
            topic=given["syslog_topic"] or DEFAULT_TOPIC,
            udp=by_kind["udp"],  # type: ignore[arg-type]
            tcp=by_kind["tcp"],  # type: ignore[arg-type]
            path=paths[0] if paths else None,
        )
    except ConfigError as error:
        raise UsageError(str(error)) from error
    return to_socket, settings


def _may_restart(
    context: click.Context, config: Path | None, bootstrap: str | None, security: Security, given: dict[str, Any]
) -> bool:
    """Whether the settings are still sound; a file that was broken meanwhile is reported."""
    try:
        _settings(context, config, bootstrap, security, given)
    except (CommandFailed, ValueError) as error:
        click.echo(f"warning: the settings are not sound any more: {printable(str(error))}", err=True)
        return False
    return True


def _announce(gateway: Gateway) -> None:
    settings = gateway.settings
    scheme = "https" if settings.tls is not None else "http"
    if gateway.http_address is not None:
        click.echo(f"gateway {settings.name!r}: {scheme}://{gateway.http_address}/v1/topics", err=True)
    if gateway.ops_address is not None:
        click.echo(f"gateway {settings.name!r}: http://{gateway.ops_address}/metrics", err=True)
    for name, listener in gateway.silent.items():
        for address in listener.addresses:
            click.echo(printable(f"gateway {settings.name!r}: {name} at {address}"), err=True)
    if settings.is_insecure and gateway.http_address is not None and not gateway.http_address.is_loopback:
        click.echo("warning: anyone who can connect may write", err=True)
