"""One connection to one broker, with pipelined requests.

Requests come in as kio entities or as encoded bodies, each with a deadline. A `Pending` goes out whose result is
the body of the response. A connection never retries, reconnects or uses metadata: after any error it is closed,
and every request that still waits on it fails.
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
"""Called with a completed request, on the thread that completed it. It must not block or raise. It may `start` further
requests."""

_SIZE = Struct(">i")
_LAST_ID = 0x7FFFFFFF  # correlation ids are int32


class VersionOf(Protocol):
    """Returns the version of an API to use with a broker: the `Connection.version` of its connection."""

    def __call__(self, api_key: int, *, highest: int | None = None) -> int: ...


class Connection:
    """Created by `Connection.open`. Threads may share it. `with` closes it."""

    def __init__(self, transport: Transport, *, client_id: str) -> None:
        self.address = transport.address
        self.versions: Mapping[int, tuple[int, int]] = MappingProxyType({})
        """The lowest and highest version that the broker supports, by API key."""
        self.expires_at: float | None = None
        """When the broker ends the SASL session (KIP-368), by `time.monotonic`; None if never."""
        self._client_id = client_id
        self._frames = Frames(max_frame_bytes=HANDSHAKE_FRAME_BYTES)
        self._pipeline = Pipeline(transport, frames=self._frames)
        self._traffic = self._pipeline.traffic
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
        """Connect: TCP, TLS, API versions and SASL, all before the deadline.

        Raises `ConnectFailed` or `AuthenticationFailed` with what to change, and `ConnectionLost` if `interrupt` ends
        it.
        """
        interrupt = interrupt or Interrupt()
        transport = Transport.connect(address, tls=security.tls, deadline=deadline, interrupt=interrupt)
        connection = cls(transport, client_id=client_id)
        try:
            with interrupt.ends(connection.close):
                result = handshake.introduce(connection, security=security, deadline=deadline)
        except BaseException:
            connection.close()
            raise
        connection.versions = result.versions
        connection.expires_at = result.expires_at
        connection._frames.max_frame_bytes = max_frame_bytes
        connection._traffic.close_hint = result.close_hint
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
        """Whether the connection has ended."""
        return self._traffic.lost is not None

    @property
    def in_flight(self) -> int:
        """The number of requests without a response yet, including those that are not sent yet."""
        return self._traffic.in_flight

    @property
    def unsent_bytes(self) -> int:
        """The bytes that the socket has not taken yet. While there are any, also wait for POLLOUT, then `pump`."""
        return self._traffic.unsent_bytes

    def use_buffers(self, buffers: Buffers) -> None:
        """Set `buffers`, the memory pool into which large responses are received. Connections may share it."""
        self._frames.buffers = buffers

    def fileno(self) -> int:
        """The descriptor to select on, -1 once closed. If it is readable, call `pump`."""
        return self._pipeline.fileno()

    def version(self, api_key: int, *, highest: int | None = None) -> int:
        """Return the highest version of an API that both sides support, at most `highest`.

        Raises `UnsupportedFormat` if there is none.
        """
        lowest, ours = messages.supported_versions(api_key)
        ours = ours if highest is None else min(ours, highest)
        theirs = self.versions.get(api_key)
        if theirs is not None and max(lowest, theirs[0]) <= min(ours, theirs[1]):
            return min(ours, theirs[1])
        offer = "does not offer it" if theirs is None else f"offers versions {theirs[0]} to {theirs[1]}"
        raise UnsupportedFormat(
            f"{self.address}: Ottla needs {messages.api_name(api_key)} in a version from {lowest} to {ours},"
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
        """Send a request with an encoded body, without copying it, and block until the socket has taken all of it.

        Raises `ConnectionLost` if the connection is already closed, and `RequestTimedOut` if it was busy sending until
        the deadline. Any later failure is in the `Pending`.
        """
        pending = self._pending(api_key, version, deadline=deadline, answered=answered)
        self._pipeline.send(pending, self._frame(pending, body))
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
        """Like `submit`, but never block: later calls of `pump` send what the socket does not take now.

        The buffers must not change until then (`Pending.sent`). Requests go out in order; the caller limits their
        number (`unsent_bytes`). With `Reply.NONE` the request is done, with an empty result, when the socket has taken
        it. Raises `ConnectionLost` if the connection is already closed.
        """
        pending = self._pending(api_key, version, deadline=deadline, reply=reply, answered=answered)
        self._pipeline.start(pending, self._frame(pending, body))
        return pending

    def start_at_once(
        self, api_key: int, version: int, body: Sequence[Buffer], *, deadline: Deadline, answered: Answered
    ) -> None:
        """Like `start`, for a small request while no other thread sends on this connection.

        It skips the hand-over of the sender role, so Ctrl-C may interrupt it anywhere. An interrupt may cost the
        connection.
        """
        pending = self._pending(api_key, version, deadline=deadline, answered=answered)
        self._pipeline.send_at_once(pending, self._frame(pending, body))

    @property
    def is_encrypted(self) -> bool:
        """Whether it uses TLS."""
        return self._pipeline.is_encrypted

    def post(self, api_key: int, version: int, body: Sequence[Buffer], *, deadline: Deadline) -> None:
        """Send a request without a response (Produce with acks=0) and block until the socket has taken it.

        Raises `NetworkError` if it could not be sent.
        """
        pending = self._pending(api_key, version, deadline=deadline, reply=Reply.NONE)
        self._pipeline.send(pending, self._frame(pending, body))
        if pending.error is not None:
            raise copied(pending.error)

    def submit_message(
        self,
        message: messages.Message | messages.Encoded,
        *,
        deadline: Deadline,
        answered: Answered | None = None,
    ) -> Pending:
        """Send a kio request. Raises as `submit` does."""
        body = (messages.encode_body(message),)
        api_key, version = int(message.__api_key__), int(message.__version__)
        return self.submit(api_key, version, body, deadline=deadline, answered=answered)

    def request(self, message: messages.Message, *, deadline: Deadline) -> Any:
        """Send a kio request and block until its response is here. Raises `NetworkError` or `WireError` on failure."""
        return self.submit_message(message, deadline=deadline).response()

    def pump(self, deadline: Deadline | None = None) -> int:
        """Send queued requests, complete those whose responses have arrived, and return how many completed.

        For owners of a select loop. Without a deadline it never blocks; with one it blocks until the first completes.
        A lost connection raises nothing: the requests carry the error, and `closed` is true. If the deadline of a
        request has passed, sent or not, it fails here and the connection is closed.
        """
        return self._pipeline.pump(deadline)

    def close(self) -> None:
        """End the connection. Requests that still wait fail with `ConnectionLost`."""
        self._pipeline.close()

    def discard(self) -> None:
        """Like `close`, after an interrupt in the middle of an operation. No other thread may be using it."""
        self._pipeline.discard()

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
            self._traffic.lose("all correlation ids of this connection are used up")
            raise ConnectionLost(self.address, self._traffic.lost or "")
        return Pending(
            self._pipeline,
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
