"""One HTTP listener: uvicorn in a thread of ours, on sockets that are given to it.

An ASGI application and bound sockets come in. It starts, stops to accept, drains and closes, as all listeners of a
gateway do. It handles no signal and opens no socket.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
import uvloop

from ottla.errors import OttlaError
from ottla.gateway.http.guard import guarded
from ottla.gateway.http.limits import Limits

_BACKLOG = 2048
_START_SECONDS = 30.0
_CLOSE_SECONDS = 5.0


class _Server(uvicorn.Server):
    """uvicorn's server with a deadline for TLS handshakes."""

    def __init__(self, config: uvicorn.Config, handshake_seconds: float) -> None:
        super().__init__(config)
        self._handshake_seconds = handshake_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve the sockets."""
        loop = asyncio.get_running_loop()
        protocol: Any = self.config.http_protocol_class
        self.servers = []
        seconds: Any = {"ssl_handshake_timeout": self._handshake_seconds} if self.config.ssl else {}
        for sock in sockets or []:
            server = await loop.create_server(
                lambda: protocol(
                    config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
                ),
                sock=sock,
                ssl=self.config.ssl,
                backlog=_BACKLOG,
                **seconds,
            )
            self.servers.append(server)
        self.started = True


class HttpListener:
    """Serves an application in a thread."""

    def __init__(
        self,
        app: Any,
        sockets: Sequence[socket.socket],
        *,
        name: str = "http",
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        count: Callable[[str], None] = lambda limit: None,
    ) -> None:
        self._sockets = list(sockets)
        self._limits = limits or Limits()
        self._is_draining = False
        for logger in ("uvicorn.error", "uvicorn.access"):  # a stranger's request must not fill the log
            logging.getLogger(logger).setLevel(logging.ERROR)
        config = uvicorn.Config(
            app,
            http=guarded(self._limits, count=count, is_draining=lambda: self._is_draining),
            loop="none",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # else anyone on this machine could claim any address
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=int(self._limits.idle_seconds) or 1,
            timeout_graceful_shutdown=int(self._limits.drain_seconds) or 1,
            ssl_context_factory=None if tls is None else lambda config, default: tls,
        )
        self._server = _Server(config, self._limits.head_seconds)
        self._thread = threading.Thread(target=self._run, name=f"ottla-gateway-{name}", daemon=True)
        self._is_ready = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Accept connections. Raises `OttlaError` if that fails."""
        self._thread.start()
        if not self._is_ready.wait(_START_SECONDS) or self._failure is not None:
            raise OttlaError(f"the HTTP listener did not start: {self._failure or 'no answer'}")

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._server.server_state.connections)

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are idle end, the others after their request."""
        self._is_draining = True
        self._server.should_exit = True

    def drain(self, seconds: float) -> bool:
        """Wait for the requests under way. Returns whether all of them have ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def close(self) -> None:
        """End what is left."""
        self.stop_accepting()
        self._server.force_exit = True
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # the thread that starts it gets it
            self._failure = error
            self._is_ready.set()

    async def _serve(self) -> None:
        starting = asyncio.ensure_future(self._server.serve([sock.dup() for sock in self._sockets]))
        while not self._server.started and not starting.done():
            await asyncio.sleep(0.001)
        self._is_ready.set()
        await starting


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `OttlaError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise OttlaError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return sock
