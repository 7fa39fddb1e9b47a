"""Where the commands of `ottla audit` work: clusters, checked before anything is read, and a Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ottla.cli.errors import UsageError
from ottla.cli.options.connection import require_brokers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.config import Security
    from ottla.jobs.brokers import Brokers

_LARGEST_BATCH = 128 << 20


def brokers_at(
    address: str,
    *,
    security: Security,
    timeout: float,
    isolation: str = "read_committed",
    max_batch_size: int = _LARGEST_BATCH,
) -> Brokers:
    """Connect once, and return how to reach the cluster: `HOST:PORT,...`, or `profile:NAME` with its own security."""
    from ottla.cli.options.profile import access_at
    from ottla.config import Timeouts
    from ottla.fetch.options import Fetching, parse_isolation
    from ottla.jobs.brokers import Brokers

    bootstrap, security = access_at(address, security)
    require_brokers(bootstrap, security, timeout=timeout)
    return Brokers(
        bootstrap=bootstrap,
        security=security,
        client_id="ottla-audit",
        timeouts=Timeouts(total=timeout),
        isolation=parse_isolation(isolation),
        fetching=Fetching(max_batch_bytes=max_batch_size),
    )


@contextmanager
def session_of(engine: str, master: str | None, *, name: str) -> Iterator[SparkSession | None]:
    """A Spark session if that is the engine. Raises `UsageError` if a master is given and it is not."""
    if engine != "spark":
        if master is not None:
            raise UsageError("--master is for --engine spark")
        yield None
        return
    from ottla.cli.terminal.spark import spark_session

    with spark_session(name, master) as session:
        yield session
