"""`FakeKafka`: the fake cluster as a test uses it: start it, read its logs, inject faults, see what clients requested.

    with FakeKafka(brokers=3, topics={"clicks": 6}) as kafka:
        kafka.fail("Produce", ErrorCode.not_leader_or_follower, times=2)
        ...any client, with bootstrap servers kafka.bootstrap...
        assert [record.value for record in kafka.records("clicks", 0)] == [...]

For tests only: records live in memory, replicas share one log, and there are no transactions, ACLs or TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from ottla.config import Address
from ottla.errors import ConfigError, InputError
from ottla.testing.fake.dispatch import Dispatcher, Reply
from ottla.testing.fake.log import Refused
from ottla.testing.fake.server import BrokerServer
from ottla.testing.fake.state import MAX_MESSAGE_BYTES, AutoCreate, ClusterState
from ottla.testing.fake.switches import FaultSwitches
from ottla.testing.fake.view import ClusterView


class FakeKafka(ClusterView, FaultSwitches):
    """A Kafka cluster inside this process, on 127.0.0.1. Its brokers have the ids 1 to `brokers`.

    `topics` maps names to partition counts. A batch above `max_message_bytes` is refused. With `auto_create=None`,
    unknown topics are an error. Raises `ConfigError` or `InputError` for invalid arguments.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        topics: Mapping[str, int] | None = None,
        auto_create: AutoCreate | None = AutoCreate(),  # noqa: B008 - a frozen value
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        if brokers < 1:
            raise ConfigError(f"FakeKafka(brokers={brokers}): use at least 1")
        self._state = ClusterState(brokers, auto_create=auto_create, max_message_bytes=max_message_bytes)
        self._dispatcher = Dispatcher(self._state)
        self._servers = {broker: BrokerServer(broker, self._replier(broker)) for broker in self._state.brokers}
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        address = self.bootstrap if self._state.addresses else "not started"
        return f"FakeKafka({address}, topics={sorted(self._state.topics)})"

    def start(self) -> None:
        """Bind a port for each broker and start answering. Raises `InputError` if it is already started."""
        if self._state.addresses:
            raise InputError(f"the fake cluster is already started, at {self.bootstrap}")
        try:
            for broker, server in self._servers.items():
                self._state.addresses[broker] = server.reserve()
            self.all_up()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Close every connection, stop every thread, free the ports. Stored records stay readable."""
        self.all_down()
        for server in self._servers.values():
            server.release()
        self._state.addresses.clear()

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients, also while brokers are down. Raises `InputError` before the start."""
        return ",".join(str(address) for address in self.addresses.values())

    @property
    def addresses(self) -> Mapping[int, Address]:
        """The address of each broker, by id. Raises `InputError` before the start."""
        if not self._state.addresses:
            raise InputError("the fake cluster is not started: use it in a `with` block, or call start()")
        return dict(self._state.addresses)

    def create_topic(self, name: str, partitions: int = 1, *, replicas: int | None = None) -> None:
        """Create the topic `name`. The default for `replicas` is the number of brokers, at most 3.

        Raises `InputError` if a real broker would refuse it.
        """
        with self._dispatcher.changed:
            try:
                self._state.create_topic(name, partitions, replicas=replicas)
            except Refused as refused:
                raise InputError(f"create_topic({name!r}, {partitions}): {refused}") from refused
            self._dispatcher.changed.notify_all()

    def move_leader(self, topic: str, partition: int, *, to: int) -> None:
        """Make the live broker `to` the leader, and a replica if it was none.

        Raises `InputError` if the partition does not exist or the broker is not up.
        """
        with self._dispatcher.changed:
            target = self._partition(topic, partition)
            if to not in self._state.live:
                raise InputError(f"broker {to} is not up; live brokers: {sorted(self._state.live)}")
            if to not in target.replicas:
                target.replicas = (*target.replicas, to)
            target.lead(to)
            self._dispatcher.changed.notify_all()

    def down(self, *brokers: int) -> None:
        """Close the connections of these brokers and refuse new ones; other replicas take over their partitions."""
        servers = [self._server(broker) for broker in brokers]
        with self._dispatcher.changed:
            for broker in brokers:
                self._state.broker_down(broker)
            self._dispatcher.changed.notify_all()
        for server in servers:
            server.close()

    def up(self, *brokers: int) -> None:
        """Let these brokers answer again, on the same ports. Raises `InputError` before the start."""
        servers = [self._server(broker) for broker in brokers]
        if not self._state.addresses:
            raise InputError("the fake cluster is not started: use it in a `with` block, or call start()")
        with self._dispatcher.changed:
            for broker in brokers:
                self._state.broker_up(broker)
            self._dispatcher.changed.notify_all()
        for server in servers:
            server.open()

    def all_down(self) -> None:
        """Take all brokers down at once."""
        self.down(*self._servers)

    def all_up(self) -> None:
        """Bring all brokers up."""
        self.up(*self._servers)

    def _replier(self, broker: int) -> Callable[[bytes], Reply]:
        return lambda frame: self._dispatcher.reply(frame, broker)

    def _server(self, broker: int) -> BrokerServer:
        if broker not in self._servers:
            raise InputError(f"there is no broker {broker}; the ids are {sorted(self._servers)}")
        return self._servers[broker]
