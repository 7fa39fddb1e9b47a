"""The README is true: its pages exist, its numbers are measured, its dependencies are those of the package.

`tests/docs` runs its programs and commands.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from bench import plot

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RATE = "records_per_second"
WRITTEN = {"acks": "all", "codec": "none"}
STORED = {"partitions": 1, "codec": "none", "batch_bytes": 64_000, "record_bytes": 100}
SEND_TABLE = ("ottla", "send_table")


def test_it_is_short() -> None:
    assert len(README.split()) < 1600


def test_every_dependency_and_extra_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    explained = README[README.index("## What each dependency is for") : README.index("## More")]
    extras = {extra: names for extra, names in project["optional-dependencies"].items() if extra != "all"}
    for requirement in [*project["dependencies"], *chain.from_iterable(extras.values())]:
        name = re.split(r"[^\w-]", requirement)[0]
        assert re.search(rf"\b{name}\b", explained), requirement
    assert set(re.findall(r"^\| `(\w+)` \|", explained, re.M)) == set(extras)


QUOTED: dict[str, tuple[str, dict[str, Any], tuple[str, str | None], tuple[str, str | None], str]] = {
    "write Arrow tables": ("produce", WRITTEN | {"record_bytes": 100}, SEND_TABLE, ("aiokafka", "send_batch"), RATE),
    "write one by one": (
        "produce",
        WRITTEN | {"record_bytes": 1000},
        ("ottla", "send"),
        ("confluent", "produce_batch"),
        RATE,
    ),
    "read into Arrow": ("consume", STORED, ("ottla", "read"), ("java", "large fetches"), RATE),
    "from send to receipt": ("consume", {}, ("ottla", "Consumer"), ("confluent", "poll"), "p99_ms"),
    "Spark to Parquet": ("spark", {"record_bytes": 100}, ("ottla", "archive"), ("jvm", "archive, snappy"), RATE),
    "mirror": ("mirror", {"cell": "1,000 B, none"}, ("ottla", None), ("mirrormaker", None), "mb_per_second"),
}


@pytest.mark.parametrize("what", QUOTED)
def test_a_quoted_number_is_that_of_the_newest_result(what: str) -> None:
    bench, workload, *ways, figure = QUOTED[what]
    result = json.loads(plot.newest()[bench].read_text(encoding="utf-8"))
    rows = [
        row
        for row in result["latency" if figure == "p99_ms" else "rows"]
        if all(row[name] == value for name, value in workload.items())
    ]
    ours, theirs = (
        next(row[figure] for row in rows if (row["peer"], row.get("variant")) == way) for way in (ways[0], ways[1])
    )
    line = next(line for line in README.splitlines() if line.startswith(f"| {what}"))
    _, _, our_text, their_text, ratio, _ = line.split("|")
    assert our_text.split()[0] == _three_digits(ours)
    assert their_text.split()[0] == _three_digits(theirs)
    quoted = re.search(r"[\d.]+", ratio)
    assert quoted
    assert float(quoted[0]) == pytest.approx(ours / theirs, abs=0.05 if ours > theirs else 0.005)
    is_behind = (ours < theirs) != (figure == "p99_ms")
    assert ("behind" in ratio) == is_behind
    if figure == RATE and len({row["peer"] for row in rows} - {"ottla", "wire_limit"}) > 1:
        others = [row[figure] for row in rows if row["peer"] not in ("ottla", "wire_limit")]
        assert theirs == max(others), "the best other is quoted"


def _three_digits(value: float) -> str:
    digits = 2 - math.floor(math.log10(value))
    return f"{round(value, digits):,.{max(digits, 0)}f}"
