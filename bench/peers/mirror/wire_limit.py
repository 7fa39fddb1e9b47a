"""No mirror at all: raw batches from a fetch answer into a produce request, five in flight. What nobody can beat.

Nothing is numbered, remembered or checked; only what a broker insists on is set in the header.
"""

from __future__ import annotations

from collections import deque

from bench.peers.mirror import Job
from ottla.admin import Admin
from ottla.errors import BrokerError
from ottla.fetch.reader import Reader
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.pending import Pending
from ottla.wire.batch import pack_header
from ottla.wire.produce import API_KEY, HIGHEST_VERSION, produce_request, produce_response

_IN_FLIGHT = 5
_SECONDS = 30.0


def run(job: Job) -> None:
    """Copy everything that is there, one partition."""
    target = TopicPartition(f"{job.prefix}.{job.topic}", 0)
    with Admin(job.target) as admin:
        admin.create_topic(target.topic, replicas=1)
    with Cluster(job.target) as cluster, Reader(job.source) as reader:
        connection = cluster.connection(cluster.leader(*target), channel="raw")
        version = connection.version(API_KEY, highest=HIGHEST_VERSION)
        flying: deque[Pending] = deque()
        for raw in reader.batches(job.topic):
            header = raw.batch.header._replace(base_offset=0, leader_epoch=-1)
            body = produce_request({target: [pack_header(header), raw.batch.records]}, acks=-1, timeout_ms=30_000)
            if len(flying) == _IN_FLIGHT:
                _check(flying.popleft())
            flying.append(connection.submit(API_KEY, version, body, deadline=Deadline.after(_SECONDS)))
        while flying:
            _check(flying.popleft())


def _check(pending: Pending) -> None:
    (answer,) = produce_response(pending.result())
    if answer.error_code:
        raise BrokerError(answer.error_code, "Produce", answer.message)
