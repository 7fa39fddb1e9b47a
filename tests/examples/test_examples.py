"""Each example does what its comment says, by the commands that the comment names, on real brokers."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.examples import comments
from tests.waiting import eventually

import ottla
from ottla.cluster import LocalCluster
from ottla.lake import Lake
from ottla.lake.contents import fingerprint
from ottla.wire.decode import SCHEMA

pytestmark = pytest.mark.broker
ORDERS = pd.read_csv(comments.EXAMPLES / "data" / "orders.csv", dtype={"quantity": "Int64"})
LOAD = "produce_from_pandas.py"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples."""
    return comments.place(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def bootstrap(hasty: LocalCluster, home: Path) -> str:
    """Brokers with the topic that most examples read, loaded as their comments say."""
    comments.create(hasty.bootstrap, comments.topics_of(LOAD))
    comments.run(comments.command(LOAD, "python "), bootstrap=hasty.bootstrap, cwd=home)
    return hasty.bootstrap


def _table(bootstrap: str, topic: str) -> pa.Table:
    with ottla.Reader(bootstrap) as reader:
        return reader.table(topic)


def _fingerprint(bootstrap: str, topic: str) -> ottla.Fingerprint:
    with ottla.Reader(bootstrap) as reader:
        return reader.fingerprint(topic)


@contextlib.contextmanager
def _running(line: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that runs until the block ends."""
    started = comments.start(line, **options)
    try:
        yield started
    finally:
        _kill(started)


def _kill(started: subprocess.Popen[str]) -> None:
    """SIGKILL, for the program and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.communicate()


def test_a_csv_file_is_in_the_topic_once_and_a_load_that_fails_leaves_nothing(bootstrap: str, home: Path) -> None:
    records = _table(bootstrap, "orders")
    found = pd.DataFrame([json.loads(value) for value in records["value"].to_pylist()]).astype({"quantity": "Int64"})
    expected = ORDERS.sort_values("order").reset_index(drop=True)
    pd.testing.assert_frame_equal(found.sort_values("order").reset_index(drop=True), expected, check_dtype=False)
    assert [key.decode() for key in records["key"].to_pylist()] == found["customer"].tolist()

    (home / "damaged.csv").write_text('order,customer\n1,ann\n2,bob\n3,"never closed\n')
    line = comments.command(LOAD, "python ").replace("examples/data/orders.csv", "damaged.csv")
    comments.run(line, bootstrap=bootstrap, cwd=home, code=1)
    assert _table(bootstrap, "orders").num_rows == len(ORDERS)


def test_orders_are_transformed_once_though_the_program_is_killed(bootstrap: str, home: Path) -> None:
    copies = 40
    orders = [json.loads(line) for line in ORDERS.to_json(orient="records", lines=True).splitlines()]
    comments.create(bootstrap, [("etl-orders", 3), ("totals", 3), ("rejected", 1)])
    etl = partial(
        _running, comments.command("etl.py", "etl.py") + " --source etl-orders", bootstrap=bootstrap, cwd=home
    )

    def handled() -> int:
        return _fingerprint(bootstrap, "totals").count + _fingerprint(bootstrap, "rejected").count

    def send(producer: ottla.Producer) -> None:
        items = [(order["customer"], json.dumps(order)) for order in orders]
        producer.send_many("etl-orders", items)
        producer.flush()

    with ottla.Producer(bootstrap) as producer:
        with etl() as killed:
            send(producer)
            eventually(lambda: handled() > 0, "the first transaction")
            for _ in range(1, copies // 2):
                send(producer)
            _kill(killed)  # most likely within a transaction
        for _ in range(copies // 2, copies):
            send(producer)
    with etl() as again:
        eventually(
            lambda: handled() == copies * len(orders) or again.poll() is not None, lambda: f"{handled()} are handled"
        )
        again.send_signal(signal.SIGTERM)
        out, err = again.communicate(timeout=60)
        assert (again.returncode, out, err) == (0, "", "")

    totals = [
        (
            order["customer"],
            {
                "order": order["order"],
                "customer": order["customer"],
                "cents": order["quantity"] * round(order["price"] * 100),
            },
        )
        for order in orders
        if order["quantity"] is not None
    ]
    columns = {
        "key": [key.encode() for key, _ in totals],
        "value": [json.dumps(value).encode() for _, value in totals],
        "headers": pa.nulls(len(totals), SCHEMA.field("headers").type),
    }
    expected = sum([fingerprint(pa.table(columns))] * copies, start=ottla.Fingerprint())
    assert _fingerprint(bootstrap, "totals") == expected
    rejected = _table(bootstrap, "rejected")
    assert rejected.num_rows == copies * int(ORDERS["quantity"].isna().sum())
    assert {header["key"] for row in rejected["headers"].to_pylist() for header in row} == {"reason"}
    assert b"TypeError" in rejected["headers"][0].as_py()[0]["value"]


def test_a_fleet_scores_every_order_once_though_nodes_are_killed(bootstrap: str, home: Path) -> None:
    folder, scores = home / "examples" / "fleet", home / "scores"
    work = f"{comments.command('fleet/score.py', 'ottla work run')} --unit-records 2 --lease 1s"
    options: dict[str, Any] = {
        "bootstrap": bootstrap,
        "cwd": folder,
        "SCORES": str(scores),
        "OTTLA_STORE": "sqlite:///fleet.db",
    }

    def files() -> list[Path]:
        return sorted(scores.glob("[!.]*.parquet"))

    with _running(work, **options):
        eventually(files, "the first file")
    before = len(files())
    comments.run(f"{work} --until latest", **options)

    found = pa.concat_tables(pq.ParquetFile(file).read() for file in files())
    log = _table(bootstrap, "orders")
    places = [["partition", "offset"], ["partition", "offset", "key"]]
    assert before < len(files())
    assert found.num_rows == log.num_rows == len(set(zip(*found.select(places[0]).to_pydict().values(), strict=True)))
    order = [(name, "ascending") for name in places[0]]
    assert found.select(places[1]).sort_by(order).equals(log.select(places[1]).sort_by(order))
    assert found["score"].null_count == ORDERS["quantity"].isna().sum()


def test_spark_submit_archives_every_record(bootstrap: str, home: Path) -> None:
    line = comments.command("archive_job.py", "spark-submit")
    assert f"{len(ORDERS)} records archived in " in comments.run(line, bootstrap=bootstrap, cwd=home)
    receipts = [receipt for entry in Lake.open(home / "lake").ledger.entries() for receipt in entry.receipts]
    assert sum((receipt.fingerprint for receipt in receipts), start=ottla.Fingerprint()) == _fingerprint(
        bootstrap, "orders"
    )
    verify = comments.command("archive_job.py", "ottla lake verify").replace("localhost:9092", bootstrap)
    assert f"{len(ORDERS)} records match the log" in comments.run(verify, bootstrap=bootstrap, cwd=home)


def test_the_cells_of_the_notebook_print_what_it_shows(bootstrap: str) -> None:
    notebook = json.loads((comments.EXAMPLES / "orders.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == 5
    for cell in cells:
        shown = ["".join(output.get("text") or output["data"]["text/plain"]) for output in cell["outputs"]]
        assert "\n".join(_run_cell("".join(cell["source"]), names)) == "\n".join(shown).rstrip("\n")
        if "parameters" in cell["metadata"].get("tags", ()):
            names["bootstrap"] = bootstrap


def _run_cell(source: str, names: dict[str, Any]) -> list[str]:
    """What a cell prints, and the value of its last line."""
    *body, last = ast.parse(source).body
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        else:
            exec(compile(ast.Module([last], []), "cell", "exec"), names)
    return [text for text in (printed.getvalue().rstrip("\n"), "" if value is None else repr(value)) if text]


def test_the_service_passes_its_tests_with_a_fake_broker(home: Path) -> None:
    line = comments.command("testing/test_alerts.py", "pytest examples")
    shutil.copy(comments.ROOT / "pyproject.toml", home)  # as in a checkout, which has settings for other tests
    # The environment is that of a user: without what makes the programs of this suite begin sooner.
    out = comments.run(f"{line} -q -p no:cacheprovider -W error", bootstrap="nowhere:1", cwd=home, PYTHONPATH="")
    assert "5 passed" in out


def test_a_mirror_is_checked_record_by_record(hasty: LocalCluster, kafka: LocalCluster, home: Path) -> None:
    folder = home / "examples" / "edge_to_hub"
    links = folder / "links.toml"
    text = links.read_text().replace("localhost:9092", hasty.bootstrap).replace("localhost:9192", kafka.bootstrap)
    links.write_text(text)
    check = partial(
        comments.run,
        comments.command("edge_to_hub/links.toml", "./check.sh"),
        bootstrap="nowhere:1",
        cwd=folder,
        EDGE=hasty.bootstrap,
        HUB=kafka.bootstrap,
    )
    mirror = comments.command("edge_to_hub/links.toml", "ottla mirror")
    comments.create(hasty.bootstrap, comments.topics_of("edge_to_hub/links.toml"))
    an_hour_ago = int(time.time() * 1000) - 3_600_000  # in a bucket that is closed: differences are faults
    clicks = pa.table({"value": [b"%d" % number for number in range(1000)], "timestamp": [an_hour_ago] * 1000})
    with ottla.Producer(hasty.bootstrap) as producer:
        producer.send_table("clicks", clicks)
    assert "1,000 records" in comments.run(mirror, bootstrap="nowhere:1", cwd=folder)
    assert _fingerprint(kafka.bootstrap, "oslo.clicks") == _fingerprint(hasty.bootstrap, "clicks")
    assert "1 complete" in check()

    with ottla.Producer(kafka.bootstrap) as producer:
        again = producer.send_table("oslo.clicks", clicks.slice(7, 1)).result().ranges[0]
    comments.run(mirror, bootstrap="nowhere:1", cwd=folder, code=1)  # a writer that is not the mirror
    assert "duplicated 1" in check(code=3)
    (difference,) = map(json.loads, (folder / "differences.jsonl").read_text().splitlines())
    assert (difference["verdict"], difference["side"]) == ("duplicated", "right")
    assert (difference["partition"], difference["offset"]) == (again.partition, again.start)
    assert (folder / "audit.html").exists()
