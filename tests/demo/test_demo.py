"""The main job: records written while a leader is killed are all there, once, and the command says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest


@pytest.mark.broker
@pytest.mark.usefixtures("quick_brokers_of_children")
def test_the_demo_ends_with_a_proof_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ottla.cli", "demo", "--records", "50000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=_environment(tmp_path), check=False)
    assert done.returncode == 0, done.stderr
    written, seen, handled, mirrored, archived = re.findall(r"fingerprint (?:[a-z]+) +(\S+)", done.stdout)
    assert written == seen == handled == mirrored == archived
    assert "receipts against" in done.stdout
    assert written.startswith("50000:")
    assert done.stdout.count("killed with SIGKILL") == 4, "a broker, a producing program, a node and the mirror"
    assert "both topics have 50,000 records" in done.stdout
    assert re.search(r"the audit: missing, partition 1, offset 4166 of the left topic, key user-\d+", done.stdout)
    assert re.search(r"the audit: duplicated, partition 2, offset \d+ of the right topic, key user-\d+", done.stdout)
    assert "the members of group demo-readers read each of them once" in done.stdout
    shares = [int(share) for share in re.findall(r"member \d: .* (\d+) partitions", done.stdout)]
    assert sum(shares) == 6
    assert all(shares), "both members had some"
    assert "what to try next" in done.stdout
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]
    assert not list(tmp_path.iterdir())


def _environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary)}


def test_the_demo_refuses_a_silly_number() -> None:
    command = [sys.executable, "-m", "ottla.cli", "demo", "--records", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--records" in done.stderr
