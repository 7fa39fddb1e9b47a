"""The token endpoint of an OAuth server, on this machine."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


@dataclass
class Endpoint:
    """The next response, and the requests so far."""

    url: str = ""
    status: int = 200
    answer: object = None
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[dict[str, str], dict[str, list[str]]]] = field(default_factory=list)


@contextlib.contextmanager
def token_endpoint() -> Iterator[Endpoint]:
    """Run an endpoint on 127.0.0.1. If the environment has a proxy, set `no_proxy`."""
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            endpoint.asked.append((dict(self.headers), parse_qs(body)))
            content = endpoint.answer if isinstance(endpoint.answer, bytes) else json.dumps(endpoint.answer).encode()
            self.send_response(endpoint.status)
            for name, value in endpoint.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/token"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
