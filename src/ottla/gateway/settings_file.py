"""Reads the settings of a gateway from a TOML file. Whatever is wrong is one `ConfigError` with its place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ottla.engines.fleet.store import open_store
from ottla.gateway.access.gate import Access
from ottla.gateway.access.rates import Rates
from ottla.gateway.access.rules import EVERYTHING, Rule, Verb, parse_verb
from ottla.gateway.access.secrets import read_secrets
from ottla.gateway.datagram.from_table import datagram_settings
from ottla.gateway.http.limits import Limits
from ottla.gateway.settings import CLIENT, Settings, parse_listen
from ottla.gateway.syslog.from_table import syslog_settings
from ottla.gateway.tls import ServerTls
from ottla.jobs.mirror_file import parse_rate
from ottla.net.access import ClusterAccess
from ottla.net.access_table import access_of
from ottla.settings_table import Table, load, shown
from ottla.tally.settings import Audit

_FILE = (
    *("name", "cluster", "http", "ops", "access", "limits", "spool", "producer", "keys", "audit", "groups"),
    *("socket", "syslog"),
)
_HTTP = ("listen", "cert_file", "key_file", "client_ca_file", "needs_certificate", "compat")
_V2 = ("v2_status", "v2_commits", "base_uri")
_ACCESS = ("secrets_file", "certificates", "rules", "rates", "origins", "hosts", "anyone_may_write")
_RULE = ("who", "topics", "verbs")
_SPOOL = ("path", "max_bytes", "fsync")
_PRODUCER = ("buffer_bytes", "max_record_bytes", "linger", "compression")
_AUDIT = ("tier", "service", "topic", "bucket", "every")


def read_settings(
    path: str | os.PathLike[str], *, bootstrap: str | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings of a file. `bootstrap` goes before the one in the file. Raises `ConfigError`."""
    root = load(path)
    root.refuse_unknown(_FILE)
    cluster = _cluster(root.table("cluster"), bootstrap, environment or {})
    http, ops = root.table("http"), root.table("ops")
    http.refuse_unknown((*_HTTP, *_V2))
    ops.refuse_unknown(("listen",))
    tls = _tls(http)
    given: dict[str, Any] = {
        "name": root.text("name"),
        "http": _listen(http),
        "ops": _listen(ops),
        "compat": frozenset(http.texts("compat")),
        **{name: http.text(name) for name in _V2},
        "limits": _limits(root.table("limits")),
        "audit": _audit(root.table("audit")),
        "socket": datagram_settings(root.table("socket")) if "socket" in root.values else None,
        "syslog": syslog_settings(root.table("syslog")) if "syslog" in root.values else None,
        **_spool(root.table("spool")),
        **_producer(root.table("producer")),
        **_keys(root.table("keys")),
        **_groups(root.table("groups")),
    }
    access = root.table("access")
    given["is_insecure"] = access.get("anyone_may_write", bool, "true or false")
    known = {name: value for name, value in given.items() if value is not None}
    return root.checked(lambda: Settings(cluster=cluster, tls=tls, access=_access(access, tls), **known))


def _cluster(table: Table, bootstrap: str | None, environment: Mapping[str, str]) -> ClusterAccess:
    if bootstrap is not None:
        table = table.over({"bootstrap": bootstrap})
    return replace(access_of(table, environment), client_id=CLIENT)


def _listen(table: Table) -> Any:
    text = table.text("listen")
    return None if text is None else table.checked(lambda: parse_listen(text))


def _tls(table: Table) -> ServerTls | None:
    cert_file, key_file, client_ca_file = (table.path(key) for key in ("cert_file", "key_file", "client_ca_file"))
    needs_certificate = table.get("needs_certificate", bool, "true or false") is True
    if cert_file is None and key_file is None and client_ca_file is None and not needs_certificate:
        return None
    if cert_file is None or key_file is None:
        table.fail("needs cert_file and key_file for TLS, both")
    for path in (cert_file, key_file, client_ca_file):
        if path is not None and not path.is_file():
            table.fail(f"names the file {path}, which does not exist")
    return table.checked(
        lambda: ServerTls(
            cert_file=cert_file, key_file=key_file, client_ca_file=client_ca_file, needs_certificate=needs_certificate
        )
    )


def _access(table: Table, tls: ServerTls | None) -> Access:
    table.refuse_unknown(_ACCESS)
    secrets_file = table.path("secrets_file")
    secrets = {} if secrets_file is None else table.checked(lambda: read_secrets(secrets_file))
    takes_certificates = table.get("certificates", bool, "true or false") is True
    hosts = table.texts("hosts")
    return Access(
        secrets=secrets,
        needs_login=bool(secrets) or takes_certificates,
        takes_certificates=takes_certificates,
        rules=_rules(table),
        rates=_rates(table.table("rates")),
        origins=frozenset(table.texts("origins")),
        hosts=frozenset(host.lower() for host in hosts) if hosts else None,
    )


def _rules(table: Table) -> tuple[Rule, ...]:
    rules = table.values.get("rules")
    if rules is None:
        return (EVERYTHING,)
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        table.fail(f"rules must be tables [[access.rules]], got {shown(rules)}")
    return tuple(
        _rule(Table(rule, f"{table.place[:-1]}.rules, number {number}]", table.folder))
        for number, rule in enumerate(rules, 1)
    )


def _rule(table: Table) -> Rule:
    table.refuse_unknown(_RULE)
    verbs: frozenset[Verb] = table.checked(lambda: frozenset(map(parse_verb, table.texts("verbs"))))
    return table.checked(lambda: Rule(table.texts("who"), table.texts("topics"), verbs))


def _rates(table: Table) -> Rates:
    table.refuse_unknown(("requests", "bytes"))
    requests, given = table.values.get("requests"), table.values.get("bytes")
    size = table.checked(lambda: parse_rate(given)) if isinstance(given, str) else given
    for name, value in (("requests", requests), ("bytes", size)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            table.fail(f"{name} must be a number per second, got {shown(value)}")
    return table.checked(lambda: Rates(requests=requests, bytes=size))


def _limits(table: Table) -> Limits:
    table.refuse_unknown([field.name for field in fields(Limits)])
    return table.checked(lambda: Limits(**table.values))


def _spool(table: Table) -> dict[str, Any]:
    table.refuse_unknown(_SPOOL)
    path = table.path("path")
    if table.values and path is None:
        table.fail("has no path")
    size = table.get("max_bytes", int, "a whole number")
    return {"spool": path, "spool_bytes": size, "spool_fsync": table.get("fsync", bool, "true or false")}


def _producer(table: Table) -> dict[str, Any]:
    table.refuse_unknown(_PRODUCER)
    linger = table.values.get("linger")
    if linger is not None and (isinstance(linger, bool) or not isinstance(linger, int | float) or linger < 0):
        table.fail(f"linger must be seconds from 0 on, got {shown(linger)}")
    return {
        "buffer_bytes": table.get("buffer_bytes", int, "a whole number"),
        "max_record_bytes": table.get("max_record_bytes", int, "a whole number"),
        "linger": linger,
        "compression": table.text("compression"),
    }


def _keys(table: Table) -> dict[str, Any]:
    table.refuse_unknown(("topic", "enabled"))
    return {"keys_topic": table.text("topic"), "keeps_keys": table.get("enabled", bool, "true or false")}


def _groups(table: Table) -> dict[str, Any]:
    table.refuse_unknown(("store", "unit_records", "unit_bytes"))
    store = table.text("store")
    if store is not None:
        table.checked(lambda: open_store(store, "gateway").close())
    return {
        "group_store": store,
        "unit_records": table.get("unit_records", int, "a whole number"),
        "unit_bytes": table.get("unit_bytes", int, "a whole number"),
    }


def _audit(table: Table) -> Audit | None:
    if not table.values:
        return None
    table.refuse_unknown(_AUDIT)
    tier = table.text("tier")
    if tier is None:
        table.fail("has no tier: write where the gateway stands, such as 'edge'")
    given: dict[str, Any] = {
        "service": table.text("service"),
        "topic": table.text("topic"),
        "bucket_seconds": table.get("bucket", int, "whole seconds"),
        "publish_every": table.seconds("every"),
    }
    return table.checked(lambda: Audit(tier=tier, **{key: value for key, value in given.items() if value is not None}))
