"""Which other clients a test may run beside Ottla: what they need, checked before anything is measured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ottla.cli.errors import UsageError
from ottla.cli.lazy import CLUSTER_PACKAGES, is_installed

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.operations.perf.workload import Workload


def check_peers(peers: tuple[str, ...] | None, workload: Workload, security: Security) -> tuple[str, ...]:
    """Return the clients. Raises `UsageError` if one is not installed, or cannot do the same work."""
    from ottla.config import PLAINTEXT

    if not peers:
        return ()
    if security != PLAINTEXT:
        raise UsageError("--beside needs a listener without TLS and SASL: their settings are not carried over")
    if "confluent" in peers and not is_installed(("confluent_kafka",)):
        raise UsageError("--beside confluent: it is not installed: pip install confluent-kafka")
    if "java" in peers:
        _check_java(workload)
    return peers


def _check_java(workload: Workload) -> None:
    if workload.threads > 1:
        raise UsageError("--beside java: Kafka's tools have one thread: pass --threads 1")
    if len(workload.topics) > 1:
        raise UsageError("--beside java: Kafka's tools take one topic")
    if not is_installed(CLUSTER_PACKAGES):
        raise UsageError("--beside java: it needs extra packages: pip install 'ottla[cluster]'")
    from ottla.cluster.java import find_java
    from ottla.errors import LocalClusterError

    try:
        find_java(os.environ)
    except LocalClusterError as error:
        raise UsageError(f"--beside java: {error}") from error
