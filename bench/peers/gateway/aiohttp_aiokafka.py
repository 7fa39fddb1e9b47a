"""What people write themselves without threads: aiohttp with aiokafka, waiting for the acknowledgement."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web
from aiokafka import AIOKafkaProducer


async def serve(bootstrap: str) -> None:
    """Serve until the process ends."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await producer.start()

    async def write(request: web.Request) -> web.Response:
        body = await request.read()
        sent = await producer.send_and_wait(request.match_info["topic"], body)
        return web.json_response({"partition": sent.partition, "offset": sent.offset})

    app = web.Application()
    app.router.add_post("/v1/topics/{topic}/records", write)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
