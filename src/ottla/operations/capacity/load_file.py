"""Reads a load from TOML: the options of `ottla capacity` by name, with their units, in tables.

A text comes in; the same texts by option come out, for the one parser of values. An unknown key is an error with its
place. Pure.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

from ottla.errors import ConfigError

TABLES: Mapping[str, Mapping[str, str]] = {
    "load": {
        "messages": "messages",
        "bytes": "bytes_rate",
        "size": "size",
        "compression": "compression",
        "peak": "peak",
        "retention": "retention",
        "replication": "replication",
        "consumers": "groups",
        "lagging": "lagging",
        "topics": "topics",
        "members": "members",
        "consumer-rate": "consumer_rate",
    },
    "machine": {
        "brokers": "brokers",
        "link": "link",
        "disks": "disks",
        "disk": "disk",
        "disk-rate": "disk_rate",
        "cores": "cores",
        "memory": "memory",
        "broker-core-rate": "broker_core_rate",
    },
    "rules": {
        "spare": "spare",
        "partition-size": "partition_size",
        "partitions-per-broker": "partitions_per_broker",
    },
    "sites": {
        "count": "sites",
        "retention": "site_retention",
        "replication": "site_replication",
        "consumers": "site_groups",
        "link": "site_link",
    },
}
"""The keys of each table, with the argument of the command that they stand for."""


def parse_load(text: str, name: str) -> dict[str, str]:
    """Return the values by argument, as they would be written on the command line. Raises `ConfigError`."""
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{name} is not TOML: {error}") from error
    values: dict[str, str] = {}
    for table, content in tables.items():
        if table not in TABLES:
            raise ConfigError(f"{name}: there is no table [{table}]: {', '.join(TABLES)} are accepted")
        if not isinstance(content, dict):
            raise ConfigError(f"{name}: {table} is a table: write [{table}]")
        for key, value in content.items():
            if key not in TABLES[table]:
                accepted = ", ".join(TABLES[table])
                raise ConfigError(f"{name}: [{table}] has no key {key}: {accepted} are accepted")
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise ConfigError(f"{name}: [{table}] {key} is a text or a number, as on the command line")
            values[TABLES[table][key]] = str(value)
    return values
