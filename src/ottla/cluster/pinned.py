"""The versions of Apache Kafka that local brokers can be, and the jars of each: a list with sizes and SHA-256.

Reads the lists that lie beside it, and nothing else. `pinning.py` makes them, `jars.py` fetches what they name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

from ottla.errors import ConfigError

DEFAULT_VERSION = "4.3.1"


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned artifact: `coordinates` are `group:artifact:version`."""

    coordinates: str
    sha256: str
    size_bytes: int

    @property
    def file(self) -> str:
        """The file's name, in the repository and in the cache."""
        _, artifact, version = self.coordinates.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def path(self) -> str:
        """Where a Maven repository keeps it, below its base URL."""
        group, artifact, version = self.coordinates.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.file}"


def versions() -> tuple[str, ...]:
    """The Kafka versions whose jars are pinned, newest first."""
    names = [entry.name for entry in resources.files(__package__).iterdir()]
    found = [n.removeprefix("kafka-").removesuffix(".json") for n in names if n.startswith("kafka-")]
    return tuple(sorted(found, key=lambda v: [int(part) for part in v.split(".")], reverse=True))


def pinned_jars(version: str) -> tuple[Jar, ...]:
    """The pinned list of one Kafka version."""
    if version not in versions():
        raise ConfigError(f"Kafka version {version!r} is not one of {', '.join(versions())}")
    text = resources.files(__package__).joinpath(f"kafka-{version}.json").read_text(encoding="utf-8")
    return tuple(Jar(row["coordinates"], row["sha256"], row["bytes"]) for row in json.loads(text)["jars"])
