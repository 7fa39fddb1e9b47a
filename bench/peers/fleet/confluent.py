"""confluent-kafka (librdkafka): a member of a consumer group, and a member of a share group (KIP-932)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.peers import Unavailable
from bench.peers.consume import AT_ONCE
from bench.peers.fleet import WAIT_SECONDS, Done, Job, Watch, burn, warmed
from ottla.errors import BrokerError, ErrorCode, OttlaError
from ottla.net import Cluster, Deadline
from ottla.net.connection import VersionOf
from ottla.net.targets import Controller
from ottla.wire import messages

_INCREMENTAL_ALTER_CONFIGS = 44
_GROUP_RESOURCE = 32
_SET = 0
_NAP = 0.02


def _settings(job: Job) -> dict[str, Any]:
    return {"bootstrap.servers": job.bootstrap, "group.id": job.group}


class _Share:
    """The partitions that a member has. It begins when all members have theirs: before that it reads nothing."""

    def __init__(self, job: Job) -> None:
        self._partitions = job.partitions // job.nodes
        self.watch: Watch | None = None

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if len(partitions) != self._partitions:
            consumer.assign([])
            return
        self.watch = self.watch or Watch()
        consumer.assign([TopicPartition(one.topic, one.partition, 0) for one in partitions])


def _group(job: Job) -> Done:
    # Its default is to stop fetching for a second when its queue is full: a fifth of the rate.
    consumer = Consumer(_settings(job) | {"auto.offset.reset": "earliest", "fetch.queue.backoff.ms": 0})
    share = _Share(job)
    try:
        consumer.subscribe([job.topic], on_assign=share.assigned)
        wanted = job.records // job.nodes
        received = _received(lambda: consumer.consume(AT_ONCE, timeout=0.1), job, wanted)
        consumer.commit(asynchronous=False)  # what is done is said, as a fleet says it
        assert share.watch is not None
        share.watch.lap()
        done = share.watch.done(received)
        _wait_for_others(consumer, job)
        return done
    finally:
        consumer.close()


def _wait_for_others(consumer: Consumer, job: Job) -> None:
    """Whoever leaves first makes the group share its partitions anew, and takes from the others what they work on."""
    everything = [TopicPartition(job.topic, partition) for partition in range(job.partitions)]
    deadline = time.monotonic() + WAIT_SECONDS
    while sum(max(0, one.offset) for one in consumer.committed(everything, timeout=WAIT_SECONDS)) < job.records:
        if time.monotonic() > deadline:
            raise AssertionError(f"the other members did not end within {WAIT_SECONDS:.0f} s")
        time.sleep(_NAP)


def _share_group(job: Job) -> Done:
    try:
        from confluent_kafka import ShareConsumer
    except ImportError as error:
        raise Unavailable("this confluent-kafka has no share consumer") from error
    _begin_with_the_first(job)
    consumer = ShareConsumer(_settings(job))
    try:
        consumer.subscribe([job.topic])
        first = _received(lambda: list(consumer.poll(0.1)), job, 1)
        watch = Watch()  # nobody knows when it may begin before it has something
        received = first + _received(lambda: list(consumer.poll(0.1)), job, job.records - first)
        consumer.commit_sync(WAIT_SECONDS)
        watch.lap()
        return watch.done(received)
    except KafkaException as error:
        raise Unavailable(f"the share consumer does not run here: {error}") from error
    finally:
        consumer.close()


def _received(poll: Callable[[], Sequence[Any]], job: Job, wanted: int) -> int:
    """Takes messages until there are as many as wanted."""
    count, heard = 0, time.monotonic()
    while count < wanted:
        some = poll()
        values = [message.value() for message in some]
        if values:
            if some[-1].error():
                raise KafkaException(some[-1].error())
            count += len(values)
            burn(len(values), job)
            heard = time.monotonic()
        elif time.monotonic() > heard + WAIT_SECONDS:
            raise AssertionError(f"{count} of {wanted} records came, and then none for {WAIT_SECONDS:.0f} s")
    return count


def _begin_with_the_first(job: Job) -> None:
    """A share group begins with what is written from now on, unless it has a setting that says otherwise."""
    wanted = {"name": "share.auto.offset.reset", "config_operation": _SET, "value": "earliest"}
    resource = {"resource_type": _GROUP_RESOURCE, "resource_name": job.group, "configs": [wanted]}

    def build(version_of: VersionOf) -> messages.Message:
        kind = messages.request_type(_INCREMENTAL_ALTER_CONFIGS, version_of(_INCREMENTAL_ALTER_CONFIGS))
        message: messages.Message = messages.compose(kind, {"resources": [resource], "validate_only": False})
        return message

    def check(response: Any) -> None:
        code = response.responses[0].error_code
        if code is not ErrorCode.none:
            raise BrokerError(code, "setting where a share group begins")

    try:
        with Cluster(job.bootstrap) as cluster:
            what = "setting where a share group begins"
            cluster.call(Controller(), build, check=check, what=what, deadline=Deadline.after(WAIT_SECONDS))
    except OttlaError as error:
        raise Unavailable(f"the broker does not take the settings of share groups: {error}") from error


VARIANTS = {"consumer group": warmed(_group), "share group": warmed(_share_group)}
PACED: dict[str, Callable[[Job], list[float]]] = {}
