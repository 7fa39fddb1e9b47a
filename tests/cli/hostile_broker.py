"""A broker that says something hostile wherever the protocol lets it say anything in words."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any
from uuid import UUID

from kio.index import load_response_schema
from kio.schema.index import api_key_map

from ottla.config import Address
from ottla.errors import ErrorCode
from ottla.testing.fake import messages
from ottla.wire.messages import supported_versions

HOSTILE = "a\x1b]0;owned\x07\x1b[31m\nFORGED line\r\x9b2J\u202egnp.exe\u2028\u200f\x7fb"
"""A title for the terminal, colours, a line of its own, C1, a text that runs to the left."""
FORGED = "FORGED"

API_VERSIONS, METADATA, LIST_OFFSETS = 18, 3, 2
_TOPIC_ID = UUID(int=7)

Change = Callable[[int, Any, dict[str, Any]], None]
"""What a test wants otherwise: the API, the request, and the answer as a tree, to be changed in place."""


@contextlib.contextmanager
def hostile_broker(change: Change | None = None) -> Iterator[str]:
    """Its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address(*server.getsockname()[:2])
        threading.Thread(target=_accept, args=(server, address, change), daemon=True).start()
        yield str(address)
        server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, address: Address, change: Change | None) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_serve, args=(connection, address, change), daemon=True).start()


def _serve(connection: socket.socket, address: Address, change: Change | None) -> None:
    with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
        while length := stream.read(4):
            frame = stream.read(struct.unpack(">i", length)[0])
            key, version = messages.peek(frame)
            incoming = messages.parse(frame, known=True)
            tree = _tree(key, version, incoming.body, address)
            if change is not None:
                change(key, incoming.body, tree)
            connection.sendall(messages.answer(key, version, correlation_id=incoming.correlation_id, tree=tree))


def _tree(key: int, version: int, request: Any, address: Address) -> dict[str, Any]:
    tree = filled(load_response_schema(key, version))
    if key == API_VERSIONS:
        tree["api_keys"] = [
            {"api_key": one, "min_version": low, "max_version": high}
            for one in api_key_map
            for low, high in [supported_versions(one)]
        ]
    if key == METADATA:
        tree["brokers"] = [{"node_id": 0, "host": address.host, "port": address.port, "rack": HOSTILE}]
        names = [HOSTILE] if request.topics is None else [topic.name for topic in request.topics]
        tree["topics"] = [{**tree["topics"][0], "name": name} for name in names]
    if "node_id" in tree and "host" in tree:  # an answer to the question who coordinates
        tree.update(host=address.host, port=address.port)
    for one in tree.get("coordinators", ()):
        one.update(host=address.host, port=address.port, key=request.coordinator_keys[0])
    if key == LIST_OFFSETS:
        tree["topics"] = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": part.partition_index, "offset": 5, "timestamp": -1} for part in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    return tree


def filled(kind: Any) -> dict[str, Any]:
    """Every field of a message: words are hostile, lists have one element, numbers are 0."""
    return {slot.name: _value(slot) for slot in messages._slots(kind)}


def _value(slot: Any) -> Any:
    if slot.entity is not None and is_dataclass(slot.entity):
        return [filled(slot.entity)] if slot.is_array else filled(slot.entity)
    known = {"string": HOSTILE, "error_code": ErrorCode.none, "uuid": _TOPIC_ID, "bool": False, "bytes": b""}
    value = known.get(slot.kafka_type, messages._ZEROS.get(slot.kafka_type, 0))
    return [value] if slot.is_array else value


def refusing(code: ErrorCode, *, but: tuple[int, ...] = (API_VERSIONS, METADATA)) -> Change:
    """Every answer has this error, with words."""

    def change(key: int, request: Any, tree: dict[str, Any]) -> None:
        if key not in but:
            _spread(tree, code)

    return change


def _spread(tree: Any, code: ErrorCode) -> None:
    for name, value in tree.items() if isinstance(tree, dict) else ():
        if name == "error_code":
            tree[name] = code
        for item in value if isinstance(value, list) else [value]:
            _spread(item, code)
