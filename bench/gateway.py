"""The gateway benchmark: records over HTTP into one real broker, by our gateway and by what people write themselves.

Server, load and broker are processes on one machine and share its processors; servers take turns. Every server waits
for the acknowledgement of each request. `bare` is our server with an endpoint that does nothing. Datagrams and syslog
are measured by `gateway_lines.py`. See README.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import gateway_lines, harness
from bench.figures import Goals, rotated, verdicts
from bench.harness import ROOT, Effort
from bench.stage import Stage, versions

GOALS: Goals = {
    "produce_vs_bare": (">=", 0.6),
    "ndjson_rate_vs_confluent_inprocess": (">=", 0.3),
    "p99_vs_aiohttp_aiokafka": ("<=", 0.5),
    "requests_vs_fastapi_confluent": (">=", 2.0),
    **gateway_lines.GOALS,
}
CONNECTIONS = 32
LINES = 100
_FIGURES = ("requests_per_second", "p50_ms", "p99_ms", "cpu_us", "records_per_second", "per_second")
_SECONDS = 5.0
_IDLE = 1000
_SPARE = 20
"""Connections beside the idle ones: a listener that is full refuses."""
_TICKS = os.sysconf("SC_CLK_TCK")
_SERVERS = ("bare", "ottla", "fastapi_confluent", "aiohttp_aiokafka")
_RECORD = json.dumps({"user": 4711, "path": "/a/page", "text": "x" * 150}, separators=(",", ":"))


def run(effort: Effort) -> dict[str, Any]:
    """Measure everything; about five minutes with full effort."""
    machine = harness.machine()
    seconds = max(1.0, _SECONDS * min(1.0, effort.scale * 2))
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    with Stage.open() as stage, stage.topic() as topic:
        for turn in range(effort.rounds):
            for peer in rotated(_SERVERS, turn):
                harness.progress(f"one record, round {turn + 1} of {effort.rounds}: {peer}")
                with _server(peer, stage.bootstrap) as (process, port):
                    figures = _loaded(process, port, topic, "application/json", _RECORD, seconds)
                    runs.setdefault(("one record", peer), []).append(figures)
                    if peer == "ottla":
                        harness.progress(f"{LINES} lines, round {turn + 1} of {effort.rounds}: {peer}")
                        lines = "\n".join([_RECORD] * LINES)
                        figures = _loaded(process, port, topic, "application/x-ndjson", lines, seconds)
                        figures["records_per_second"] = figures["requests_per_second"] * LINES
                        runs.setdefault(("lines", peer), []).append(figures)
            harness.progress(f"{LINES} lines, round {turn + 1} of {effort.rounds}: confluent in its process")
            runs.setdefault(("lines", "confluent_inprocess"), []).append(_in_process(stage.bootstrap, topic, seconds))
        idle = _idle_memory(stage.bootstrap)
        lines_found = gateway_lines.run(effort, stage)
    rows = [_row(what, peer, figures) for (what, peer), figures in runs.items()]
    quoted = ratios(rows) | lines_found["ratios"]
    rows += [{"what": row["kind"], **row} for row in lines_found["rows"]]
    return {"bench": "gateway", "date": harness.today(), "machine": machine} | {
        "versions": versions() | harness.versions("uvicorn", "fastapi", "aiohttp", "aiokafka", "confluent-kafka"),
        "effort": asdict(effort),
        "rows": rows,
        "idle_clients": idle,
        "ratios": quoted,
        "goals": verdicts(quoted, GOALS),
    }


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The figures that are quoted."""
    by_place = {(row["what"], row["peer"]): row for row in rows}

    def compared(figure: str, what: str, theirs: str) -> float:
        return float(round(by_place[what, "ottla"][figure] / by_place[what, theirs][figure], 3))

    return {
        "produce_vs_bare": compared("requests_per_second", "one record", "bare"),
        "requests_vs_fastapi_confluent": compared("requests_per_second", "one record", "fastapi_confluent"),
        "requests_vs_aiohttp_aiokafka": compared("requests_per_second", "one record", "aiohttp_aiokafka"),
        "p99_vs_aiohttp_aiokafka": compared("p99_ms", "one record", "aiohttp_aiokafka"),
        "ndjson_rate_vs_confluent_inprocess": compared("records_per_second", "lines", "confluent_inprocess"),
    }


def table(result: dict[str, Any]) -> str:
    """For people."""
    heads = ("requests/s", "p50 ms", "p99 ms", "CPU us", "records/s", "messages/s")
    lines = [f"{'what':<14}{'peer':<22}" + "".join(f"{head:>12}" for head in heads)]
    for row in result["rows"]:
        cells = [row.get(name) for name in _FIGURES]
        shown = ["-" if cell is None else f"{cell:,.2f}" if cell < 100 else f"{cell:,.0f}" for cell in cells]
        lines.append(f"{row['what']:<14}{row['peer']:<22}" + "".join(f"{cell:>12}" for cell in shown))
    idle = result["idle_clients"]
    lines.append(
        f"{idle['clients']} idle clients take {idle['bytes'] / 1e6:.1f} MB of {idle['all_bytes'] / 1e6:.0f} MB"
    )
    lines += [f"{name} = {value}" for name, value in result["ratios"].items()]
    lines += [f"{name}: {goal['verdict']} ({goal['goal']})" for name, goal in result["goals"].items()]
    return "\n".join(lines)


def _row(what: str, peer: str, figures: list[dict[str, float]]) -> dict[str, Any]:
    names = {name for each in figures for name in each}
    medians = {name: statistics.median(each[name] for each in figures) for name in sorted(names)}
    return {"what": what, "peer": peer, "rounds": len(figures)} | {name: round(v, 3) for name, v in medians.items()}


@contextmanager
def _server(peer: str, bootstrap: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server in a process of its own, and its port."""
    if peer == "ottla":
        command = ["-m", "ottla.cli", "gateway", "run", "--http", "0", "--bootstrap", bootstrap, *options]
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        stream = process.stderr
    else:
        command = ["-m", f"bench.peers.gateway.{peer}", bootstrap]
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        stream = process.stdout
    try:
        assert stream is not None
        said = stream.readline()
        digits = said.strip() if said.strip().isdigit() else said.rpartition("/v1/")[0].rpartition(":")[2]
        if not digits.isdigit():
            raise RuntimeError(f"{peer} did not start: {said}{stream.read()}")
        yield process, int(digits)
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _loaded(
    process: subprocess.Popen[str], port: int, topic: str, content_type: str, body: str, seconds: float
) -> dict[str, float]:
    before = _cpu_seconds(process.pid)
    request = {
        "port": port,
        "path": f"/v1/topics/{topic}/records",
        "content_type": content_type,
        "body": body,
        "connections": CONNECTIONS,
        "seconds": seconds,
    }
    answer = harness.in_own_process("bench.peers.gateway.load", request)
    if answer.pop("failed"):
        raise RuntimeError("some requests failed")
    requests = answer["requests_per_second"] * (seconds + 1.0)  # the load warms up for a second
    return answer | {"cpu_us": (_cpu_seconds(process.pid) - before) / requests * 1e6}


def _in_process(bootstrap: str, topic: str, seconds: float) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.peers.gateway.confluent_inprocess", bootstrap, topic, str(seconds)],
        input="\n".join([_RECORD] * LINES),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def _idle_memory(bootstrap: str) -> dict[str, int]:
    """What connections that send nothing take, once they have sent one request each."""
    import socket

    harness.progress(f"{_IDLE} idle clients")
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        config = Path(folder) / "gateway.toml"
        config.write_text(f"[limits]\nconnections = {_IDLE + _SPARE}\n")
        with _server("ottla", bootstrap, "--config", str(config)) as (process, port):
            before = _resident_bytes(process.pid)
            socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(_IDLE)]
            for sock in socks:
                sock.sendall(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for sock in socks:
                if not sock.recv(1 << 16).startswith(b"HTTP/1.1 200"):
                    raise RuntimeError("an idle client was refused")
            time.sleep(0.5)
            after = _resident_bytes(process.pid)
            for sock in socks:
                sock.close()
    return {"clients": len(socks), "bytes": after - before, "all_bytes": after}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return float(int(fields[11]) + int(fields[12])) / float(_TICKS)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
