"""An endpoint that reads a body and answers, on the gateway's own server: what HTTP alone costs."""

from __future__ import annotations

import threading
from typing import Any

from ottla.gateway.http.server import HttpListener, bind


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Read everything, answer with its length."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message["body"])
        more = message["more_body"]
    body = b'{"n":%d}' % size
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Serve until the process ends."""
    sock = bind("127.0.0.1", 0)
    HttpListener(app, [sock]).start()
    print(sock.getsockname()[1], flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
