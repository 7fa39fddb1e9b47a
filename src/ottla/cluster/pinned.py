"""The Kafka versions that local brokers can run, and their jars: lists with sizes and SHA-256 checksums.

Reads the lists in this folder and nothing else. `pinned_writer.py` makes them, `jars.py` downloads what they name.
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
        """The file name, in the repository and in the cache."""
        _, artifact, version = self.coordinates.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def path(self) -> str:
        """The path in a Maven repository, below its base URL."""
        group, artifact, version = self.coordinates.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.file}"


def versions() -> tuple[str, ...]:
    """Return the Kafka versions whose jars are pinned, newest first."""
    names = [entry.name for entry in resources.files(__package__).iterdir()]
    pinned = [n.removeprefix("kafka-").removesuffix(".json") for n in names if n.startswith("kafka-")]
    return tuple(sorted(pinned, key=lambda v: [int(part) for part in v.split(".")], reverse=True))


def pinned_jars(version: str) -> tuple[Jar, ...]:
    """Return the pinned list of one Kafka version. Raises `ConfigError` for an unknown version."""
    if version not in versions():
        raise ConfigError(f"Kafka version {version!r} is not one of {', '.join(versions())}")
    text = resources.files(__package__).joinpath(f"kafka-{version}.json").read_text(encoding="utf-8")
    return tuple(Jar(row["coordinates"], row["sha256"], row["bytes"]) for row in json.loads(text)["jars"])
