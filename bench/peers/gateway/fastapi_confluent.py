"""What people write themselves: FastAPI on uvicorn with confluent-kafka, waiting for the acknowledgement."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from typing import Any

import confluent_kafka
import uvicorn
from fastapi import FastAPI, HTTPException, Request


def make(bootstrap: str) -> FastAPI:
    """Return the application."""
    app = FastAPI()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})

    def poll() -> None:
        while True:
            producer.poll(0.1)

    threading.Thread(target=poll, daemon=True).start()

    @app.post("/v1/topics/{topic}/records")
    async def write(topic: str, request: Request) -> dict[str, int]:
        body = await request.body()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[int, int]] = loop.create_future()

        def settle(error: Any, message: Any) -> None:
            if error is None:
                loop.call_soon_threadsafe(done.set_result, (message.partition(), message.offset()))
            else:
                loop.call_soon_threadsafe(done.set_exception, HTTPException(503, str(error)))

        producer.produce(topic, body, on_delivery=settle)
        partition, offset = await done
        return {"partition": partition, "offset": offset}

    return app


def main() -> None:
    """Serve until the process ends."""
    sock = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(sock.getsockname()[1], flush=True)
    config = uvicorn.Config(make(sys.argv[1]), loop="uvloop", http="httptools", access_log=False, log_level="warning")
    asyncio.run(uvicorn.Server(config).serve([sock]))


if __name__ == "__main__":
    main()
