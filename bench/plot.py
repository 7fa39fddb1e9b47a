"""`python -m bench plot`: charts of the newest result of each benchmark, written to `bench/plots/`.

Comes in: `bench/results/DATE-NAME.json`. Goes out: one SVG file for each benchmark, with every row that was measured in
the workloads shown, ours and others alike, best first. It leaves no peer out, and measures nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.plot_drawing import Chart, Column, Kind, Panel, Row, draw

RESULTS = Path(__file__).parent / "results"
PLOTS = Path(__file__).parent / "plots"
_FILE = re.compile(r"\d{4}-\d\d-\d\d-([a-z]+)\.json")
_NAMES = {
    "ottla": "Ottla",
    "confluent": "confluent-kafka",
    "confluent_inprocess": "confluent-kafka, no HTTP",
    "kafka_python": "kafka-python",
    "java": "Java",
    "jvm": "Spark's connector",
    "mirrormaker": "MirrorMaker 2",
    "wire_limit": "wire limit",
    "memcpy": "memcpy",
    "spark": "Ottla on Spark",
    "python_source": "a source in Python",
    "bare": "the server alone",
    "fastapi_confluent": "FastAPI, confluent-kafka",
    "aiohttp_aiokafka": "aiohttp, aiokafka",
    "receive_only": "a loop that only receives",
}
_LIMITS = {"wire_limit", "memcpy", "bare", "receive_only", "import", "python_source"}
_OURS = {"ottla", "spark"}
_NOTHING_READ = "read nothing to noop"
_NOTHING = {"peer": "python_source", "variant": "that reads nothing"}

Result = Mapping[str, Any]
Measured = Sequence[Mapping[str, Any]]


def number(value: float) -> str:
    """A count with three digits: `12.4 M`, `361 k`, `82`, `0.35`."""
    for size, name in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{_three(value / size)}{name}"
    return _three(value)


def whole(value: float) -> str:
    """A number with its thousands apart, and fractions of small ones."""
    return f"{value:,.0f}" if value >= 100 else _three(value)


def seconds(value: float) -> str:
    """Seconds."""
    return f"{_three(value)} s"


def _three(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    text = f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".")


def _name(row: Mapping[str, Any]) -> str:
    peer = _NAMES.get(row["peer"], str(row["peer"]))
    if not row.get("variant"):
        return peer
    return f"{peer}{',' if row['peer'] in _LIMITS else ''} {row['variant']}"


def _kind(row: Mapping[str, Any]) -> Kind:
    return "ours" if row["peer"] in _OURS else "limit" if row["peer"] in _LIMITS else "peer"


def _panel(
    heading: str, columns: Sequence[tuple[Column, Measured, str]], *, name: Callable[[Any], str] = _name
) -> Panel:
    """A panel of everything that was measured: each column has its rows and the figure of them that it shows."""
    kinds: dict[str, Kind] = {}
    for _, rows, figure in columns:
        kinds |= {name(row): _kind(row) for row in rows if figure in row}
    found = [{name(row): float(row[figure]) for row in rows if figure in row} for _, rows, figure in columns]
    drawn = [Row(label, kind, tuple(values.get(label) for values in found)) for label, kind in kinds.items()]
    is_more_better = columns[0][0].is_more_better

    def place(row: Row) -> tuple[bool, bool, float]:
        value = row.values[0]
        return row.kind != "limit", value is None, (value or 0.0) * (-1 if is_more_better else 1)

    return Panel(heading, tuple(column for column, _, _ in columns), tuple(sorted(drawn, key=place)))


def _rates(heading: str, cells: Mapping[str, Measured]) -> Panel:
    columns = [(Column(size, number, True), rows, "records_per_second") for size, rows in cells.items()]
    return _panel(f"{heading}: records a second, more is better", columns)


def _costs(heading: str, cells: Mapping[str, Measured]) -> Panel:
    columns = [(Column(size, whole, False), rows, "cpu_ns") for size, rows in cells.items()]
    return _panel(f"{heading}: processor time of the client in ns a record, less is better", columns)


def _latencies(heading: str, rows: Measured) -> Panel:
    columns = [(Column("half within, ms", whole, False), rows, "p50_ms")]
    columns.append((Column("99 % within, ms", whole, False), rows, "p99_ms"))
    return _panel(f"{heading}, less is better", columns)


def _where(rows: Measured, **values: Any) -> Measured:
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def _sizes(rows: Measured, **values: Any) -> dict[str, Measured]:
    return {f"{size:,} B": _where(rows, record_bytes=size, **values) for size in (100, 1000)}


def _wire(result: Result) -> Iterable[Panel]:
    for codec in ("none", "zstd"):
        for operation in ("decode", "encode"):
            cells = _sizes(result["rows"], operation=operation, codec=codec, batch_bytes=1_000_000, shape="value")
            yield _costs(f"{operation}, {'uncompressed' if codec == 'none' else codec}", cells)


def _produce(result: Result) -> Iterable[Panel]:
    for codec in ("none", "zstd"):
        cells = _sizes(result["rows"], acks="all", codec=codec)
        title = f"one partition, acks=all, {'uncompressed' if codec == 'none' else codec}"
        yield _rates(title, cells)
        if codec == "none":
            yield _costs(title, cells)
    yield _latencies("from the call to the acknowledgement, 1,000 records a second", result["latency"])


def _consume(result: Result) -> Iterable[Panel]:
    for partitions, title in ((1, "one partition"), (6, "six partitions")):
        cells = _sizes(result["rows"], partitions=partitions, codec="none", batch_bytes=64_000)
        yield _rates(f"{title}, uncompressed", cells)
        if partitions == 1:
            yield _costs(f"{title}, uncompressed", cells)
    title = "from send to receipt, 1,000 records a second"
    busy = [row for row in result["latency"] if row["variant"].endswith("busy program")]
    yield _latencies(title, [row for row in result["latency"] if row not in busy])
    yield _latencies(f"{title}, beside a thread that computes in Python", busy)


def _spark(result: Result) -> Iterable[Panel]:
    for what in ("read", "archive", "write"):
        rows = [row for row in result["rows"] if row["variant"].startswith(what)]
        yield _rates(what, _sizes([row | _NOTHING if row["variant"] == _NOTHING_READ else row for row in rows]))
    batches = [row | {"variant": row["variant"].removeprefix("micro-batches").strip(", ")} for row in result["latency"]]
    yield _latencies("micro-batches of ten records", batches)


def _fleet(result: Result) -> Iterable[Panel]:
    def name(row: Mapping[str, Any]) -> str:
        return f"{_name(row)}, {row['nodes']} node{'s' * (row['nodes'] > 1)}"

    for handler, title in ((0.0, "nothing done with a record"), (2.0, "2 us of Python for each record")):
        rows = _where(result["rows"], handler_us=handler)
        rate, cost = Column("records a second, more is better", number, True), Column("CPU ns a record", whole, False)
        yield _panel(title, [(rate, rows, "records_per_second"), (cost, rows, "cpu_ns")], name=name)


def _scale(result: Result) -> Iterable[Panel]:
    for what in ("produce", "read", "group"):
        rows = _where(result["rows"], what=what)
        counts = sorted({row["partitions"] for row in rows})
        cells = {f"{count:,} partition{'s' * (count > 1)}": _where(rows, partitions=count) for count in counts}
        title = {"group": "a group of two"}.get(what, what)
        yield _rates(title, cells)
        yield _costs(title, cells)


def _start(result: Result) -> Iterable[Panel]:
    groups = {
        "read a record": ("import numpy, pyarrow", "ottla, read a record", "confluent, read a record"),
        "send a record": ("import numpy, pyarrow", "ottla, send a record", "confluent, send a record"),
        "a command": ("import click", "ottla consume --help"),
        "first query of a Spark session": ("ottla, first query", "jvm, first query"),
    }
    for title, names in groups.items():
        rows = [row | {"peer": _who(row["name"])} for row in result["rows"] if row["name"] in names]
        columns = [(Column("seconds", seconds, False), rows, "seconds")]
        if any("memory_mb" in row for row in rows):
            columns.append((Column("memory, MB", whole, False), rows, "memory_mb"))
        yield _panel(f"{title}, less is better", columns, name=lambda row: str(row["name"]))


def _who(name: str) -> str:
    return re.split(r"[ ,]", name)[0]


def _mirror(result: Result) -> Iterable[Panel]:
    cells = {cell: _where(result["rows"], cell=cell) for cell in ("100 B, none", "1,000 B, none", "1,000 B, zstd")}
    rate, cost = "mb_per_second", "cpu_s_per_gb"
    yield _panel("MB a second, more is better", [(Column(c, whole, True), rows, rate) for c, rows in cells.items()])
    columns = [(Column(c, whole, False), rows, cost) for c, rows in cells.items()]
    yield _panel("processor seconds a GB, less is better", columns)
    two = _where(result["rows"], cell="1,000 B, none, 2 partitions")
    yield _panel(
        "as a Spark job: MB a second, more is better", [(Column("1,000 B, two partitions", whole, True), two, rate)]
    )


def _audit(result: Result) -> Iterable[Panel]:
    for words, title in (
        (("tables",), "sending, without and with counting"),
        (("count", "finger"), "counting a topic"),
    ):
        yield _costs(title, _sizes([row for row in result["rows"] if row["variant"].startswith(words)]))


def _operations(result: Result) -> Iterable[Panel]:
    rows = [row | {"peer": "ottla", "variant": ""} for row in result["rows"]]
    figures = {"seconds": seconds, "requests": whole, "memory_mb": whole}
    headings = {"seconds": "one look", "requests": "requests", "memory_mb": "memory, MB"}
    columns = [(Column(headings[figure], show, False), rows, figure) for figure, show in figures.items()]
    yield _panel("lag of 2,000 groups in 20,000 partitions, less is better", columns, name=lambda row: str(row["way"]))


def _gateway(result: Result) -> Iterable[Panel]:
    one = _where(result["rows"], what="one record")
    columns = [(Column("requests a second, more is better", number, True), one, "requests_per_second")]
    columns += [(Column(name, whole, False), one, figure) for name, figure in _GATEWAY_LESS.items()]
    yield _panel("one record in a request", columns)
    many = _where(result["rows"], what="lines")
    rate = Column("records a second, more is better", number, True)
    yield _panel("100 lines in a request", [(rate, many, "records_per_second")])
    kinds = {"datagram": "unix datagrams", "syslog": "syslog, datagrams", "syslog_stream": "syslog, a stream"}
    cells = {title: _where(result["rows"], what=kind) for kind, title in kinds.items()}
    if any(cells.values()):
        columns = [(Column(title, number, True), rows, "per_second") for title, rows in cells.items()]
        yield _panel("messages a second, more is better", columns)


_GATEWAY_LESS = {"p50 ms": "p50_ms", "p99 ms": "p99_ms", "CPU us a request": "cpu_us"}
_CHARTS: Mapping[str, tuple[str, Callable[[Result], Iterable[Panel]]]] = {
    "audit": ("What tallies cost", _audit),
    "consume": ("Reading a topic", _consume),
    "fleet": ("Units of work", _fleet),
    "gateway": ("Records over HTTP", _gateway),
    "mirror": ("From one cluster to another", _mirror),
    "operations": ("Looking at a cluster", _operations),
    "produce": ("Writing to a topic", _produce),
    "scale": ("A million records in 1 to 5,000 partitions", _scale),
    "spark": ("Kafka in Spark", _spark),
    "start": ("From the start of a process", _start),
    "wire": ("Records to batches and back, without a network", _wire),
}


def newest() -> dict[str, Path]:
    """The newest result of each benchmark that has a chart."""
    found = {}
    for path in sorted(RESULTS.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match and match[1] in _CHARTS:
            found[match[1]] = path
    return found


def chart(name: str, result: Result) -> str:
    """The SVG file of one result."""
    title, panels = _CHARTS[name]
    machine, versions = result["machine"], result["versions"]
    note = f"{result['date']}, {machine['cpu']}, {machine['usable_cores']} cores, Python {versions['python']}"
    if name not in ("wire",):
        note += f", Kafka {versions['kafka']}"
    return draw(Chart(title, f"{note}. Medians; bold is the best.", tuple(p for p in panels(result) if p.rows)))


def write(folder: Path = PLOTS) -> list[Path]:
    """Write the charts of all newest results, and return their paths."""
    folder.mkdir(exist_ok=True)
    written = []
    for name, path in newest().items():
        target = folder / f"{name}.svg"
        target.write_text(chart(name, json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
        written.append(target)
    return written
