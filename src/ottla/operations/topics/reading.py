"""Reads a file of declared topics: TOML with the cluster's id, defaults, naming rules and topics.

A path comes in, a `Declaration` goes out, with topics of sites expanded and values in Kafka's units. Whatever is wrong
is one `ConfigError` with its place in the file. It connects nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from ottla.operations.topics.declaration import Declaration, DeclaredTopic, Naming
from ottla.quantities import parse_duration, parse_size
from ottla.settings_table import Table, load, shown

_ROOT = ("cluster", "defaults", "naming", "topics")
_DEFAULTS = ("partitions", "replicas", "settings")
_TOPIC = (*_DEFAULTS, "sites")
_MOST = 1 << 20
_UNLIMITED = ("forever", "unlimited")


def read_declaration(path: str | os.PathLike[str]) -> Declaration:
    """Return what the file `path` declares.

    Raises `ConfigError` for a file that cannot be read, unknown keys, wrong types, names that break the rules, and two
    declarations of one topic.
    """
    root = load(path)
    root.refuse_unknown(_ROOT)
    cluster_id = root.text("cluster")
    if not cluster_id:
        root.fail("has no cluster: write cluster = ID, as 'topics export' does, so that it is not applied to another")
    defaults, naming = root.table("defaults"), root.table("naming")
    defaults.refuse_unknown(_DEFAULTS)
    rules = _naming(naming)
    topics: dict[str, DeclaredTopic] = {}
    for key in root.table("topics").values:
        table = root.table("topics").table(key)
        _refuse_dots(key, table)
        table.refuse_unknown(_TOPIC)
        for name in _names(key, table, rules):
            if name in topics:
                table.fail(f"declares topic {name}, which is declared already")
            topics[name] = _topic(name, table, defaults)
    return Declaration(cluster_id, tuple(topics[name] for name in sorted(topics)))


def _refuse_dots(key: str, table: Table) -> None:
    """Raise `ConfigError` for [topics.a.b], which is a table in a table."""
    for inner, value in table.values.items():
        if inner not in _TOPIC and isinstance(value, dict):
            table.fail(f'has a table {inner!r}: a name with a dot needs quotes, such as [topics."{key}.{inner}"]')


def _naming(table: Table) -> Naming:
    table.refuse_unknown(("pattern", "sites", "allowed"))
    given: dict[str, Any] = {"sites": table.texts("sites"), "allowed": table.text("allowed")}
    pattern = table.text("pattern")
    return table.checked(lambda: Naming(**given) if pattern is None else Naming(pattern=pattern, **given))


def _names(key: str, table: Table, rules: Naming) -> Iterator[str]:
    """Yield the topics that a table declares: one, or one for each of its sites."""
    value = table.values.get("sites", False)
    if value is False:
        yield table.checked(lambda: rules.check(key))
        return
    sites = rules.sites if value is True else table.texts("sites")
    if not sites:
        table.fail("is for sites, and [naming] has no sites")
    for site in sites:
        yield table.checked(lambda site=site: rules.check(rules.at(site, key)))  # type: ignore[misc]


def _topic(name: str, table: Table, defaults: Table) -> DeclaredTopic:
    settings = {**_settings(defaults.table("settings")), **_settings(table.table("settings"))}
    merged = table.under(defaults)
    return DeclaredTopic(name, _count(merged, "partitions"), _count(merged, "replicas"), settings)


def _count(table: Table, key: str) -> int | None:
    number = table.get(key, int, "a whole number")
    if number is not None and not 1 <= number <= _MOST:
        table.fail(f"{key} must be 1 to {_MOST}, got {number}")
    return number


def _settings(table: Table) -> dict[str, str]:
    """Return settings by Kafka's names: `retention.ms = 5` makes tables in TOML unless the key is quoted."""
    settings: dict[str, str] = {}
    for key, value in _flat(table.values):
        if key in settings:
            table.fail(f"has {key} twice, with quotes and without")
        settings[key] = _value(table, key, value)
    return settings


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _value(table: Table, key: str, value: object) -> str:
    """Return a value as brokers take it. Durations and sizes may have units; without, they are Kafka's own."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():  # 1e9
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if not isinstance(value, str):
        table.fail(f"{key} must be a text, a number, true, false or a list of texts, got {shown(value)}")
    return table.checked(lambda: in_kafka_units(key, value))


def in_kafka_units(key: str, text: str) -> str:
    """Return `4d` in milliseconds for a setting in `.ms`, `50GB` in bytes for one in `.bytes`. Raises ValueError."""
    stripped = text.strip()
    if not key.endswith((".ms", ".bytes")) or stripped.lstrip("-").isdecimal():
        return stripped
    if stripped.lower() in _UNLIMITED:
        return "-1"
    try:
        return str(round(parse_duration(stripped) * 1000) if key.endswith(".ms") else parse_size(stripped))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
