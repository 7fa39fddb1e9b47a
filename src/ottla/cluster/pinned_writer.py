"""Writes the pinned list of jars of one Kafka version, to add a version. Nothing else imports it.

A folder in the layout of a Maven repository, with exactly the jars that a broker and the console tools need, comes in;
the JSON that `pinned.py` reads goes out. To make the folder, let Maven resolve `org.apache.kafka:kafka_2.13`,
`org.apache.kafka:kafka-tools` (both of the version to add) and `org.slf4j:slf4j-simple:1.7.36` with a pom.xml:

    mvn dependency:copy-dependencies -DincludeScope=runtime \\
        -Dmdep.useRepositoryLayout=true -DoutputDirectory=repository
    python -m ottla.cluster.pinned_writer VERSION repository > src/ottla/cluster/kafka-VERSION.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

# Kafka 3.9's tools bring this second slf4j binding; two on one class path make slf4j complain at every start.
_EXCLUDED = frozenset({"org.slf4j:slf4j-reload4j"})


def pinned(version: str, repository: Path) -> str:
    """Return the pinned list as the text of a JSON file."""
    return json.dumps({"kafka": version, "jars": list(_rows(repository))}, indent=1) + "\n"


def _rows(repository: Path) -> Iterator[dict[str, str | int]]:
    for jar in sorted(repository.rglob("*.jar"), key=lambda path: path.name.lower()):
        *group, artifact, version, file = jar.relative_to(repository).parts
        if f"{'.'.join(group)}:{artifact}" in _EXCLUDED:
            continue
        if file != f"{artifact}-{version}.jar":
            raise SystemExit(f"{jar} has a classifier, which the list cannot represent")
        content = jar.read_bytes()
        yield {
            "coordinates": f"{'.'.join(group)}:{artifact}:{version}",
            "sha256": hashlib.sha256(content).hexdigest(),
            "bytes": len(content),
        }


if __name__ == "__main__":
    sys.stdout.write(pinned(sys.argv[1], Path(sys.argv[2])))
