"""The wire benchmark: records into batches and batches into records, against other Python clients and memcpy.

Every peer gets a process of its own and the same bytes; see README.md for what the clock covers and whom it favours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench import harness
from bench.harness import Effort, Sample
from bench.records import Case

PEERS = ("ottla", "aiokafka", "kafka_python", "memcpy")
LARGE, SMALL = 1_000_000, 16_384

CASES = (
    *(
        Case(record_bytes=size, codec=codec, batch_bytes=LARGE, shape="value", records=records)
        for size, records in ((100, 100_000), (1000, 20_000))
        for codec in ("none", "lz4", "zstd")
    ),
    Case(record_bytes=100, codec="none", batch_bytes=SMALL, shape="value", records=100_000),
    Case(record_bytes=100, codec="none", batch_bytes=LARGE, shape="full", records=50_000),
)


def run(effort: Effort) -> dict[str, Any]:
    """Measure everything; about four minutes with full effort."""
    machine = harness.machine()
    cases = [replace(case, records=max(100, int(case.records * effort.scale))) for case in CASES]
    with tempfile.TemporaryDirectory() as folder:
        files = _batch_files(cases, Path(folder))
        rows = _measured(cases, files, effort)
    return {
        "bench": "wire",
        "date": harness.today(),
        "machine": machine,
        "versions": harness.versions(
            "ottla", "numba", "numpy", "pyarrow", "crc32c", "cramjam", "lz4", "aiokafka", "kafka-python"
        ),
        "effort": asdict(effort),
        "rows": rows,
        "ratios": ratios(rows, "cpu_ns"),
        "ratios_of_wall_time": ratios(rows, "ns"),
    }


def _batch_files(cases: list[Case], folder: Path) -> list[str]:
    """Encode each case once, so that all peers decode the same batches."""
    from bench.peers import ottla

    files = []
    for i, case in enumerate(cases):
        path = folder / f"{i}.batches"
        path.write_bytes(ottla.batches(case))
        files.append(str(path))
    return files


def _measured(cases: list[Case], files: list[str], effort: Effort) -> list[dict[str, Any]]:
    samples: dict[tuple[str, int, str, str], list[Sample]] = {}
    skipped: dict[tuple[str, int, str, str], str] = {}
    for turn in range(effort.rounds):
        for peer in PEERS:
            harness.progress(f"round {turn + 1} of {effort.rounds}: {peer}")
            request = {"peer": peer, "effort": asdict(effort), "cases": [asdict(c) for c in cases], "files": files}
            for row in harness.in_own_process("bench.peers", request)["rows"]:
                place = (peer, row["case"], row["operation"], row["variant"])
                if "skipped" in row:
                    skipped[place] = row["skipped"]
                else:
                    samples.setdefault(place, []).extend(Sample(*sample) for sample in row["samples"])
    rows = [_row(place, cases[place[1]], harness.summary(s, cases[place[1]].records)) for place, s in samples.items()]
    rows += [_row(place, cases[place[1]], {"skipped": why}) for place, why in skipped.items()]
    return sorted(rows, key=lambda row: (_case_order(row), row["operation"], PEERS.index(row["peer"])))


def _case_order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Rows of one case stay together, uncompressed large batches first."""
    codecs = ("none", "lz4", "zstd")
    return row["shape"] != "value", -row["batch_bytes"], row["record_bytes"], codecs.index(row["codec"])


def _row(place: tuple[str, int, str, str], case: Case, measured: dict[str, Any]) -> dict[str, Any]:
    peer, _, operation, variant = place
    row = {"peer": peer, "operation": operation, "variant": variant, **asdict(case), **measured}
    if "ns" in measured:
        row["mb_per_second"] = round(case.record_bytes / measured["ns"] * 1000, 1)
    return row


def ratios(rows: list[dict[str, Any]], clock: str) -> dict[str, float]:
    """The figures that are quoted, from the medians of one clock: uncompressed, large batches, values only."""
    result: dict[str, float] = {}
    chosen = [(row, row[clock]) for row in rows if clock in row]
    for size in (100, 1000):
        ours = _median(chosen, size, "ottla", "decode", "all columns")
        from_arrow = _median(chosen, size, "ottla", "encode", "arrow")
        from_list = _median(chosen, size, "ottla", "encode", "list")
        result[f"decode_ns_{size}"] = ours
        result[f"decode_key_value_ns_{size}"] = _median(chosen, size, "ottla", "decode", "key and value")
        result[f"encode_ns_{size}"] = from_arrow
        result[f"encode_list_ns_{size}"] = from_list
        for peer in ("aiokafka", "kafka_python"):
            decode, encode = (_median(chosen, size, peer, operation, "objects") for operation in ("decode", "encode"))
            result[f"decode_vs_{peer}_{size}"] = decode / ours
            result[f"encode_vs_{peer}_{size}"] = encode / from_arrow
            result[f"encode_list_vs_{peer}_{size}"] = encode / from_list
        # The other way round: how many times the cost of copying the bytes once.
        result[f"decode_vs_memcpy_{size}"] = ours / _median(chosen, size, "memcpy", "decode", "copy")
        result[f"encode_vs_memcpy_{size}"] = from_arrow / _median(chosen, size, "memcpy", "encode", "copy")
    return {name: round(value, 2) for name, value in result.items()}


def _median(rows: list[tuple[dict[str, Any], float]], size: int, peer: str, operation: str, variant: str) -> float:
    wanted = {
        "record_bytes": size,
        "peer": peer,
        "operation": operation,
        "variant": variant,
        "codec": "none",
        "batch_bytes": LARGE,
        "shape": "value",
    }
    (found,) = (median for row, median in rows if wanted.items() <= row.items())
    return found


def table(result: dict[str, Any]) -> str:
    """For people: medians, quartiles, and the ratios."""
    return "\n".join(_lines(result))


def _lines(result: dict[str, Any]) -> Iterator[str]:
    machine = result["machine"]
    yield f"wire, {result['date']}, {machine['cpu']}, {machine['usable_cores']} cores, {machine['system']}"
    yield ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    heading = ""
    for row in result["rows"]:
        case = Case(**{name: row[name] for name in Case.__dataclass_fields__})
        if (title := f"{row['operation']}: {case.name}") != heading:
            heading = title
            yield f"\n{title:<60}{'ns a record':>12}{'quartiles':>20}{'CPU ns':>10}{'MB/s':>9}"
        name = f"  {row['peer']}, {row['variant']}"
        if "skipped" in row:
            yield f"{name:<60} {row['skipped']}"
            continue
        quartiles = f"{row['ns_spread']['q1']:.1f} - {row['ns_spread']['q3']:.1f}"
        yield f"{name:<60}{row['ns']:>12.1f}{quartiles:>20}{row['cpu_ns']:>10.1f}{row['mb_per_second']:>9.0f}"
    yield f"\n{'medians of, uncompressed, batches of 1 MB':<60}{'CPU time':>12}{'wall time':>20}"
    for name, value in result["ratios"].items():
        yield f"  {name:<58}{value:>12.2f}{result['ratios_of_wall_time'][name]:>20.2f}"
