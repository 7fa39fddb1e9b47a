"""The gateway's datagrams and syslog lines per second, against a loop that only receives them.

One process sends as fast as the other takes. The gateway's clock stops when the broker has acknowledged everything;
that of the loop when the last one was received, to be thrown away. `bench.gateway` calls `run` and shows its rows.
`python -m bench.gateway_lines` runs alone.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import harness
from bench.figures import Goals, Row, rotated, verdicts
from bench.harness import ROOT, Effort
from bench.stage import Stage

GOALS: Goals = {"syslog_rate_vs_receive_only": (">=", 0.3)}
KINDS = {"datagram": 600_000, "syslog": 600_000, "syslog_stream": 2_000_000}
"""How many messages a run has with full effort: unix datagrams in dory's format and of syslog; lines on a stream.

Unix sockets alone: what else runs on the machine may connect to any port.
"""
PEERS = ("ottla", "receive_only")
_PROGRAM = (sys.executable, "-m", "bench.programs.gateway_lines")
_SECONDS = 180.0


def run(effort: Effort, stage: Stage) -> dict[str, Any]:
    """Measure every kind with both peers; they take turns."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for turn in range(effort.rounds):
        harness.progress(f"lines, round {turn + 1} of {effort.rounds}")
        for kind, full in KINDS.items():
            count = max(20_000, int(full * effort.scale))
            for peer in rotated(PEERS, turn):
                with stage.topic(partitions=2) as topic:
                    answer = _once(kind, peer, count=count, topic=topic, bootstrap=stage.bootstrap)
                    if peer == PEERS[0] and (found_count := stage.records(topic, 2)) != count + 1:
                        raise AssertionError(f"{count + 1} {kind} messages were sent, the broker has {found_count}")
                found.setdefault((kind, peer), []).append({"count": count} | answer)
    rows = [_row(kind, peer, answers) for (kind, peer), answers in found.items()]
    return {"rows": rows, "ratios": ratios(rows)}


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """Rates of the gateway divided by those of the loop."""
    rates = {(row["kind"], row["peer"]): row["per_second"] for row in rows}
    return {
        f"{kind}_rate_vs_receive_only": round(rates[kind, PEERS[0]] / rates[kind, PEERS[1]], 3)
        for kind in KINDS
        if (kind, PEERS[0]) in rates
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The result as lines of a table."""
    head = f"{'kind':14} {'peer':14} {'messages/s':>12} {'CPU us each':>12}"
    rows = [
        f"{row['kind']:14} {row['peer']:14} {row['per_second']:12,} {row['cpu_us']:12.2f}" for row in result["rows"]
    ]
    return [head, *rows, *(f"{name} = {value}" for name, value in result["ratios"].items())]


def _once(kind: str, peer: str, *, count: int, topic: str, bootstrap: str) -> dict[str, float]:
    """One run: a process that takes, and one that sends."""
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        request = {
            "kind": kind,
            "peer": peer,
            "count": count,
            "topic": topic,
            "bootstrap": bootstrap,
            "path": str(Path(folder) / "s"),
        }
        command = [*_PROGRAM, json.dumps(request | {"role": "take"})]
        with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE) as taking:
            try:
                assert taking.stdout is not None
                if not taking.stdout.readline():
                    raise RuntimeError(f"{peer} did not start")
                sending = request | {"role": "send"}
                subprocess.run([*_PROGRAM, json.dumps(sending)], cwd=ROOT, timeout=_SECONDS, check=True)
                line, _ = taking.communicate(timeout=_SECONDS)
            finally:
                taking.kill()
        answer: dict[str, float] = json.loads(line.splitlines()[-1])
        return answer


def _row(kind: str, peer: str, answers: Sequence[dict[str, float]]) -> Row:
    rates = [answer["count"] / answer["seconds"] for answer in answers]
    return {
        "kind": kind,
        "peer": peer,
        "messages": answers[0]["count"],
        "per_second": round(statistics.median(rates)),
        "per_second_spread": {"min": round(min(rates)), "max": round(max(rates))},
        "cpu_us": round(statistics.median(answer["cpu"] / answer["count"] * 1e6 for answer in answers), 3),
        "samples": len(answers),
    }


def main() -> None:
    """Run alone: `--quick` for little data."""
    effort = harness.QUICK if "--quick" in sys.argv else harness.FULL
    machine = harness.machine()
    with Stage.open() as stage:
        result = run(effort, stage)
    goals = verdicts(result["ratios"], GOALS)
    whole = {"bench": "gateway_lines", "date": harness.today(), "machine": machine, "effort": asdict(effort)}
    if "--json" in sys.argv:
        print(json.dumps(whole | result | {"goals": goals}, indent=2))
    else:
        print("\n".join(lines(result)))


if __name__ == "__main__":
    main()
