"""Reads links of a mirror from a TOML file: clusters, topics, rules and rates, with defaults for all of them.

A file comes in, checked `Link` values go out. Whatever is wrong is one `ConfigError` with its place in the file.
Secrets come from files, or from variables that the caller passes in; their values never show. It connects nowhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ottla.fetch.bounds import Bound
from ottla.jobs.brokers import Brokers
from ottla.jobs.mirror_audit import LinkAudit
from ottla.jobs.mirror_link import Link
from ottla.mirror.rules import Policy
from ottla.mirror.topics import Rename, check_link_name
from ottla.net import access_table
from ottla.settings_table import Table, load, shown

CLIENT = "ottla-mirror"
_FROM_MIRRORMAKER = "docs/guides/from-mirrormaker.md says what the settings of MirrorMaker are called here"
_FILE_KEYS = ("defaults", "links")
_RULES = ("on_foreign", "on_lost", "on_target_lost")
_TABLES = ("source", "target", "rates", "priorities", "audit")
_LINK_KEYS = (
    *("topics", "exclude", "rename", "start", "rate", "groups", "isolated", "replicas", "follow_settings", "journal"),
    "patience",
    *_RULES,
    *_TABLES,
)
_AUDIT_KEYS = ("tier", "topic", "bucket", "every", "headers_only", *access_table.KEYS)
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMG]?)(i?)[bB]\s*(?:/s)?\s*")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}
_RATES = "bytes per second as a number, or a text such as '10MB/s'"


def read_links(path: str | os.PathLike[str], *, environment: Mapping[str, str] | None = None) -> tuple[Link, ...]:
    """Return the links of a file. `environment` has the variables that its `*_env` keys may name.

    Raises `ConfigError` for a file that cannot be read, for unknown keys, wrong types and invalid settings.
    """
    root = load(path, hint=_FROM_MIRRORMAKER)
    root.refuse_unknown(_FILE_KEYS)
    defaults = root.table("defaults")
    defaults.refuse_unknown(_LINK_KEYS)
    links = root.table("links")
    if not links.values:
        root.fail("has no links: write a table [links.NAME] with topics, source and target for each")
    variables = environment or {}
    return tuple(_link(name, links.table(name), defaults, variables) for name in links.values)


def read_side(
    path: str | os.PathLike[str], *, bootstrap: str | None = None, environment: Mapping[str, str] | None = None
) -> Brokers:
    """Return how to reach a cluster, from a file with the keys of a `source` or `target` table.

    `bootstrap` goes before the one in the file. Raises `ConfigError` as `read_links` does.
    """
    root = load(path, hint=_FROM_MIRRORMAKER)
    if bootstrap is not None:
        root = root.over({"bootstrap": bootstrap})
    return _brokers_of(root, environment or {})


def parse_rate(text: str) -> float:
    """Return the bytes per second of `10MB/s`, `512KiB/s` or `100B/s`. Raises `ValueError` if it is no rate."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a rate: write it with a unit, such as '10MB/s', '512KiB/s' or '100B/s'")
    factor: int = (1024 if match[3] else 1000) ** _POWERS[match[2].lower()]
    return float(match[1]) * factor


def _link(name: str, given: Table, defaults: Table, environment: Mapping[str, str]) -> Link:
    given.refuse_unknown(_LINK_KEYS)
    table = given.under(defaults, tables=_TABLES)
    for side in ("source", "target"):
        if not table.table(side).values:
            table.fail(f"has no {side}: write a table [links.{name}.{side}] with its bootstrap")
    table.checked(lambda: check_link_name(name))
    rename = table.checked(lambda: Rename(table.text("rename") or "{topic}"))

    def at_target(key: str) -> dict[str, Any]:
        """The names in a table of topics are those of the source; a link has those of the target."""
        topics = table.table(key)
        names = {topic: rename.apply(topic, link=name) for topic in topics.values}
        for topic, new_name in names.items():
            if new_name is None:
                topics.fail(f"{topic!r} is not the name of a topic")
        return {str(names[topic]): value for topic, value in topics.values.items()}

    rules = {key: value for key in _RULES if (value := table.text(key)) is not None}
    patience = table.seconds("patience")
    priorities = at_target("priorities")
    for topic, priority in priorities.items():
        if not isinstance(priority, int) or isinstance(priority, bool):
            table.table("priorities").fail(f"{topic} must be a whole number, got {shown(priority)}")
    settings: dict[str, Any] = {
        "topics": table.texts("topics"),
        "groups": table.texts("groups"),
        "isolated": table.texts("isolated"),
        "exclude": table.texts("exclude"),
        "start": _start(table),
        "journal": table.text("journal"),
        "rate": _rate(table, "rate", table.values.get("rate")),
        "rates": {topic: _rate(table.table("rates"), topic, value) for topic, value in at_target("rates").items()},
        "follow_settings": table.get("follow_settings", bool, "true or false"),
        "replicas": table.get("replicas", int, "a whole number"),
    }
    policy: dict[str, Any] = {**rules, "priorities": priorities, **({} if patience is None else {"patience": patience})}
    source, target = (_brokers_of(table.table(side), environment) for side in ("source", "target"))
    settings["audit"] = _audit(table.table("audit"), environment)
    return table.checked(
        lambda: Link(
            source=source,
            target=target,
            name=name,
            rename=rename.rule,
            rules=Policy(**policy),
            **{key: value for key, value in settings.items() if value is not None},
        )
    )


def _brokers_of(table: Table, environment: Mapping[str, str]) -> Brokers:
    access = access_table.access_of(table, environment)
    return Brokers(bootstrap=access.bootstrap, security=access.security, client_id=CLIENT, timeouts=access.timeouts)


def _audit(table: Table, environment: Mapping[str, str]) -> LinkAudit | None:
    """How the target is counted. Tallies go to the target unless the table names a cluster."""
    if not table.values:
        return None
    table.refuse_unknown(_AUDIT_KEYS)
    tier, topic = table.text("tier"), table.text("topic")
    if tier is None:
        table.fail("has no tier: write where the target stands, such as 'aggregate'")
    side = {key: value for key, value in table.values.items() if key in access_table.KEYS}
    brokers = _brokers_of(Table(side, table.place, table.folder), environment) if side else None
    given: dict[str, Any] = {
        "topic": topic,
        "bucket_seconds": table.get("bucket", int, "whole seconds"),
        "every": table.seconds("every"),
        "headers_only": table.get("headers_only", bool, "true or false"),
    }
    known = {key: value for key, value in given.items() if value is not None}
    return table.checked(lambda: LinkAudit(tier=tier, brokers=brokers, **known))


def _start(table: Table) -> Bound:
    value = table.values.get("start", "earliest")
    if isinstance(value, str) and value not in ("earliest", "latest"):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            table.fail(f"start is {value!r}; accepted are 'earliest', 'latest', an offset and a time with a zone")
    if isinstance(value, datetime):
        if value.tzinfo is None:
            table.fail(f"start is the time {value.isoformat()} without a zone: add Z if it is UTC")
        return value
    if isinstance(value, bool) or not isinstance(value, str | int) or (isinstance(value, int) and value < 0):
        table.fail(f"start must be 'earliest', 'latest', an offset or a time, got {shown(value)}")
    return value


def _rate(table: Table, key: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        return table.checked(lambda: parse_rate(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        table.fail(f"{key} must be {_RATES}, got {shown(value)}")
    return float(value)
