"""Sends or takes lines for `bench.gateway_lines`: a request as JSON in the argument, an answer on standard output.

What takes says `ready` first. Its clock runs from the first arrival until all is taken and, by a listener of the
gateway, acknowledged by the broker.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from ottla.gateway.datagram.format import Message, write

_LINE = (
    b'<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog 8710 ID47 [exampleSDID@32473 iut="3" '
    b'eventSource="Application" eventID="1011"] An application event log entry'
)
_VALUE_BYTES = 200
_STREAM_CHUNK = 1 << 16
_SECONDS = 120.0


def payload(kind: str, topic: str) -> bytes:
    """What is sent each time: a datagram, or a line for a stream."""
    if kind == "datagram":
        return write(Message(topic.encode(), b"v" * _VALUE_BYTES, None, time.time_ns() // 1_000_000))
    return _LINE + b"\n" if kind == "syslog_stream" else _LINE


def send(request: dict[str, Any]) -> None:
    """Send `count` messages as fast as they are taken."""
    one = payload(request["kind"], request["topic"])
    count = request["count"]
    if request["kind"] == "syslog_stream":
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(request["path"])
            lines = _STREAM_CHUNK // len(one)
            for _ in range(count // lines):
                stream.sendall(one * lines)
            stream.sendall(one * (count % lines))
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(request["path"])
        emit = sender.send
        for _ in range(count):
            emit(one)


def take(request: dict[str, Any]) -> dict[str, float]:
    """Take `count` messages."""
    return _receive_only(request) if request["peer"] == "receive_only" else _listen(request)


def _receive_only(request: dict[str, Any]) -> dict[str, float]:
    if request["kind"] == "syslog_stream":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(request["path"])
            listening.listen()
            _say(ready=True)
            stream, _ = listening.accept()
        left = request["count"] * len(payload("syslog_stream", ""))
        buffer = bytearray(256 << 10)
        with stream:
            began, cpu = time.perf_counter(), time.process_time()
            while left:
                left -= stream.recv_into(buffer)
            return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(request["path"])
        _say(ready=True)
        receive = sock.recv
        receive(65536)
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(request["count"] - 1):
            receive(65536)
        return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def _listen(request: dict[str, Any]) -> dict[str, float]:
    import pyarrow as pa

    from ottla import Producer
    from ottla.gateway.datagram.listener import DatagramListener
    from ottla.gateway.datagram.settings import DatagramSettings
    from ottla.gateway.intake import Intake
    from ottla.gateway.syslog.listener import SyslogListener
    from ottla.gateway.syslog.settings import SyslogSettings

    with Producer(request["bootstrap"]) as producer:
        intake = Intake(producer, has_spool=False)
        first = pa.table({"value": [b"first"], "headers": [[{"key": "name", "value": b"value"}]]})
        producer.send_table(request["topic"], first).result(30)  # connects, and loads what it needs
        listener: DatagramListener | SyslogListener
        if request["kind"] == "datagram":
            listener = DatagramListener(DatagramSettings(path=Path(request["path"])), intake)
        elif request["kind"] == "syslog_stream":
            listener = SyslogListener(SyslogSettings(topic=request["topic"], stream_path=Path(request["path"])), intake)
        else:
            listener = SyslogListener(SyslogSettings(topic=request["topic"], path=Path(request["path"])), intake)
        with closing(listener):
            listener.start()
            _say(ready=True)
            _wait_for(listener, "received", 1, 0.0005)
            began, cpu = time.perf_counter(), time.process_time()
            _wait_for(listener, "messages", request["count"], 0.01)
            producer.flush(_SECONDS)
            answer = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
            lost = sum(count.value for count in listener.counters() if count.name in ("discarded", "lost"))
    if lost:
        raise AssertionError(f"{lost} messages were lost")
    return answer


def _wait_for(listener: Any, name: str, least: int, pause: float) -> None:
    until = time.monotonic() + _SECONDS
    while sum(count.value for count in listener.counters() if count.name == name) < least:
        if time.monotonic() > until:
            raise TimeoutError(f"{name} did not reach {least} within {_SECONDS:.0f} s")
        time.sleep(pause)


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    """Do what the request says."""
    request = json.loads(sys.argv[1])
    if request["role"] == "send":
        send(request)
    else:
        _say(**take(request))


if __name__ == "__main__":
    main()
