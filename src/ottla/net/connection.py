"""One connection to one broker: requests go out pipelined, answers come back in order to their questions.

Requests come in as kio entities or as hand-written bodies, each with a deadline; a `Pending` goes out whose
result is the body of the answer. A connection does not retry, reconnect or know metadata: once anything is
wrong with it, it is closed and every request still waiting on it fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from types import MappingProxyType, TracebackType
from typing import Any, Protocol

from ottla.config import Address, Security
from ottla.errors import ConnectionLost, UnsupportedFormat, copied
from ottla.net import handshake
from ottla.net.deadline import Deadline
from ottla.net.frames import HANDSHAKE_FRAME_BYTES, MAX_FRAME_BYTES, Buffers, Frames
from ottla.net.interrupt import Interrupt
from ottla.net.pending import Pending, Reply
from ottla.net.pipeline import Pipeline
from ottla.net.transport import Transport
from ottla.wire import messages

__all__ = ["Answered", "Buffer", "Connection", "Pending", "Reply", "VersionOf"]

Buffer = bytes | bytearray | memoryview
Answered = Callable[[Pending], None]
"""Called with a request that is done, by whichever thread completed it. It must not block or raise; it may `start`
further requests."""

_SIZE = Struct(">i")
_LAST_ID = 0x7FFFFFFF


class VersionOf(Protocol):
    """Tells which version of an API to use with a broker: `Connection.version` of the connection to it."""

    def __call__(self, api_key: int, *, highest: int | None = None) -> int: ...


class Connection:
    """Made by `Connection.open`; may be shared by threads. `with` closes it."""

    def __init__(self, transport: Transport, *, client_id: str) -> None:
        self.address = transport.address
        self.versions: Mapping[int, tuple[int, int]] = MappingProxyType({})
        """What the broker speaks: lowest and highest version by API key."""
        self.expires_at: float | None = None
        """When the broker ends the SASL session (KIP-368), by `time.monotonic`; None for never."""
        self._client_id = client_id
        self._frames = Frames(max_frame_bytes=HANDSHAKE_FRAME_BYTES)
        self._line = Pipeline(transport, frames=self._frames)
        self._traffic = self._line.traffic
        self._correlation_ids = itertools.count()

    @classmethod
    def open(
        cls,
        address: Address,
        *,
        security: Security,
        client_id: str,
        deadline: Deadline,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        interrupt: Interrupt | None = None,
    ) -> Connection:
        """TCP, TLS, API versions and SASL, all before the deadline; ConnectionLost when `interrupt` ends it."""
        interrupt = interrupt or Interrupt()
        transport = Transport.connect(address, tls=security.tls, deadline=deadline, interrupt=interrupt)
        connection = cls(transport, client_id=client_id)
        try:
            with interrupt.ends(connection.close):
                greeting = handshake.introduce(connection, security=security, deadline=deadline)
        except BaseException:
            connection.close()
            raise
        connection.versions = greeting.versions
        connection.expires_at = greeting.expires_at
        connection._frames.max_frame_bytes = max_frame_bytes
        connection._traffic.suspicion = greeting.suspicion
        return connection

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"closed: {self._traffic.lost}" if self.closed else f"{self.in_flight} in flight"
        return f"<Connection {self.address}, {state}>"

    @property
    def closed(self) -> bool:
        """Whether no further request can be sent."""
        return self._traffic.lost is not None

    @property
    def in_flight(self) -> int:
        """Requests whose answer is due, also those that are not sent yet."""
        return self._traffic.in_flight

    @property
    def unsent_bytes(self) -> int:
        """What the socket has not taken yet; while there is any, wait for POLLOUT, too, and then `pump`."""
        return self._traffic.unsent_bytes

    def use_buffers(self, buffers: Buffers) -> None:
        """The memory that large answers are received into, which other connections may use as well."""
        self._frames.buffers = buffers

    def fileno(self) -> int:
        """The descriptor to select on: readable means that `pump` has something to do; -1 once closed."""
        return self._line.fileno()

    def version(self, api_key: int, *, highest: int | None = None) -> int:
        """The highest version of an API that both sides speak, at most `highest`."""
        lowest, ours = messages.supported_versions(api_key)
        ours = ours if highest is None else min(ours, highest)
        theirs = self.versions.get(api_key)
        if theirs is not None and max(lowest, theirs[0]) <= min(ours, theirs[1]):
            return min(ours, theirs[1])
        offer = "does not offer it" if theirs is None else f"offers versions {theirs[0]} to {theirs[1]}"
        raise UnsupportedFormat(
            f"{self.address}: {messages.api_name(api_key)} is needed in a version from {lowest} to {ours},"
            f" but the broker {offer}; Ottla works with Kafka 3.0 and newer"
        )

    def submit(
        self,
        api_key: int,
        version: int,
        body: Sequence[Buffer],
        *,
        deadline: Deadline,
        answered: Answered | None = None,
    ) -> Pending:
        """Sends a request with a hand-written body, without copying it.

        Waits for its turn and until the socket has taken all of it. Raises only if the connection is closed
        already or busy sending until the deadline; every later failure is in the Pending.
        """
        pending = self._pending(api_key, version, deadline=deadline, answered=answered)
        self._line.send(pending, self._frame(pending, body))
        return pending

    def start(
        self,
        api_key: int,
        version: int,
        body: Sequence[Buffer],
        *,
        deadline: Deadline,
        reply: Reply = Reply.DUE,
        answered: Answered | None = None,
    ) -> Pending:
        """Like `submit`, but never waits: what the socket does not take now goes out in later calls of `pump`.

        The buffers must not change until then (`Pending.sent`). Raises only if the connection is closed already.
        Requests that were started go out in order; the caller bounds how many (`unsent_bytes`). With `Reply.NONE`
        the request is done, with an empty result, when the socket has taken it.
        """
        pending = self._pending(api_key, version, deadline=deadline, reply=reply, answered=answered)
        self._line.start(pending, self._frame(pending, body))
        return pending

    def start_at_once(
        self, api_key: int, version: int, body: Sequence[Buffer], *, deadline: Deadline, answered: Answered
    ) -> None:
        """Like `start`, for a small request while nobody else uses the connection to send. It takes part in no
        hand-over between threads, so that it may be interrupted at any place; the connection may be lost of that."""
        pending = self._pending(api_key, version, deadline=deadline, answered=answered)
        self._line.send_at_once(pending, self._frame(pending, body))

    @property
    def is_encrypted(self) -> bool:
        """Whether it uses TLS."""
        return self._line.is_encrypted

    def post(self, api_key: int, version: int, body: Sequence[Buffer], *, deadline: Deadline) -> None:
        """Sends a request that gets no answer, Produce with acks=0, and waits until the socket has taken it."""
        pending = self._pending(api_key, version, deadline=deadline, reply=Reply.NONE)
        self._line.send(pending, self._frame(pending, body))
        if pending.error is not None:
            raise copied(pending.error)

    def submit_message(
        self,
        message: messages.Message,
        *,
        deadline: Deadline,
        answered: Answered | None = None,
    ) -> Pending:
        """Sends a kio request."""
        body = (messages.encode_body(message),)
        api_key, version = int(message.__api_key__), int(message.__version__)
        return self.submit(api_key, version, body, deadline=deadline, answered=answered)

    def request(self, message: messages.Message, *, deadline: Deadline) -> Any:
        """Sends a kio request and waits for its answer."""
        return self.submit_message(message, deadline=deadline).response()

    def pump(self, deadline: Deadline | None = None) -> int:
        """Sends what was started, completes what has arrived and returns how many requests are done now.

        For owners of a select loop: without a deadline it never waits, with one it waits for the first. It raises
        nothing for a lost connection: the requests carry the error, and `closed` is true. When the deadline of a
        request has passed, sent or not, it fails here and the connection is closed.
        """
        return self._line.pump(deadline)

    def close(self) -> None:
        """Ends the connection; requests still waiting fail with ConnectionLost."""
        self._line.close()

    def discard(self) -> None:
        """Like `close`, after an interrupt in the middle of anything; no other thread may be using it."""
        self._line.discard()

    def _pending(
        self,
        api_key: int,
        version: int,
        *,
        deadline: Deadline,
        answered: Answered | None = None,
        reply: Reply = Reply.DUE,
    ) -> Pending:
        correlation_id = next(self._correlation_ids)
        if correlation_id > _LAST_ID:
            self._traffic.lose("every correlation id of this connection has been used")
            raise ConnectionLost(self.address, self._traffic.lost or "")
        return Pending(
            self._line,
            api_key=api_key,
            version=version,
            correlation_id=correlation_id,
            deadline=deadline,
            reply=reply,
            answered=answered,
        )

    def _frame(self, pending: Pending, body: Sequence[Buffer]) -> list[memoryview]:
        header = messages.request_header(
            pending.api_key,
            pending.version,
            correlation_id=pending.correlation_id,
            client_id=self._client_id,
        )
        views = [memoryview(buffer).cast("B") for buffer in body if len(buffer)]
        size = len(header) + sum(len(view) for view in views)
        return [memoryview(_SIZE.pack(size) + header), *views]
