"""`poll`: one look at the lag of a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ottla.model import Isolation
from ottla.net.cluster import Cluster
from ottla.operations.lag.evaluate import Evaluator
from ottla.operations.lag.names import Selection
from ottla.operations.lag.poller import Poller
from ottla.operations.lag.values import Snapshot


def poll(
    cluster: Cluster,
    groups: Iterable[str] = (),
    *,
    topic: str | None = None,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    with_times: bool = True,
    with_internal: bool = False,
    timeout: float | None = None,
) -> Snapshot:
    """Return the lag of these groups (none named: of all), in topics whose whole name matches the pattern `topic`.

    One look tells no trend: a group that lags has the state UNKNOWN. Use a `Watcher` for states. Raises `re.error` for
    an invalid pattern, and the errors of `Cluster.metadata` if no broker answers.
    """
    pattern = None if topic is None else re.compile(topic)
    selection = Selection(frozenset(groups), pattern, with_internal)
    poller = Poller(cluster, selection=selection, isolation=isolation, with_times=with_times)
    return Evaluator().observe(poller.poll(timeout=timeout))
