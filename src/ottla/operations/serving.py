"""A small HTTP server for metrics and verdicts, from the standard library.

Routes come in: paths, and functions that return a `Page` from what is already known. Pages go out, to GET and HEAD.
A function must not ask a broker: many scrapes at once would ask as many times. It listens on loopback unless another
address is named, and has no login.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple

from ottla.errors import ConfigError

LOOPBACK = "127.0.0.1"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = 10.0
"""How long a client may take to send its request."""


class Page(NamedTuple):
    """An answer."""

    body: str
    content_type: str = METRICS_TYPE
    status: int = 200


Routes = Mapping[str, Callable[[], Page]]


class Server:
    """Answers requests on threads of its own from its creation to `close`, or to the end of a `with` block."""

    def __init__(self, routes: Routes, *, host: str = LOOPBACK, port: int = 0) -> None:
        """Listen. Port 0 takes a free one. Raises `ConfigError` if the address cannot be listened on."""
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(routes))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another port") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="ottla-http", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """Where it listens, for people."""
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(routes: Routes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS
        server_version = "ottla"
        sys_version = ""

        def do_GET(self) -> None:
            route = routes.get(self.path.partition("?")[0])
            if route is None:
                known = " ".join(sorted(routes))
                self._answer(Page(f"there is {known}\n", "text/plain; charset=utf-8", 404))
                return
            try:
                page = route()
            except Exception as error:  # one request must not end the server
                page = Page(f"{type(error).__name__}\n", "text/plain; charset=utf-8", 500)
            self._answer(page)

        do_HEAD = do_GET  # noqa: N815 - the name that the standard library calls

        def _answer(self, page: Page) -> None:
            body = page.body.encode()
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing: a scrape every few seconds is no news."""

    return Handler
