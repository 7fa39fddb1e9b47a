"""Polars, pandas, DuckDB and Delta on real brokers: one call each way, with types that survive."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pytest

from ottla import Consumer, Producer, Reader
from ottla.cluster import LocalCluster
from ottla.errors import InputError, OffsetsLost

from .conftest import MakeTopic

pytestmark = pytest.mark.broker
SECONDS = 60.0
NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC)
ROWS = 1000
TIMES = [NOON + timedelta(milliseconds=row) for row in range(ROWS)]
HEADERS: list[Any] = [[{"key": "row", "value": b"%d" % row}] if row % 2 else None for row in range(ROWS)]


@pytest.fixture(scope="module")
def topic(kafka: LocalCluster, new_topic: MakeTopic) -> str:
    """A topic of two partitions with a thousand rows that a frame of polars has brought."""
    name = new_topic(2)
    frame = pl.DataFrame(
        {
            "key": [f"user-{row % 7}" for row in range(ROWS)],
            "value": [f"value {row}" for row in range(ROWS)],
            "headers": HEADERS,
            "timestamp": TIMES,
            "partition": [row % 2 for row in range(ROWS)],
        },
        schema_overrides={"key": pl.Categorical},
    )
    with Producer(kafka.bootstrap) as producer:
        assert producer.send_table(name, frame).result(SECONDS).records == ROWS
    return name


@pytest.fixture(scope="module")
def reader(kafka: LocalCluster) -> Iterator[Reader]:
    with Reader(kafka.bootstrap) as reader:
        yield reader


def test_a_topic_is_one_table_in_the_order_of_its_partitions(reader: Reader, topic: str) -> None:
    table = reader.table(topic)
    table.validate(full=True)
    assert table.column("value").to_pylist() == [b"value %d" % row for part in (0, 1) for row in range(part, ROWS, 2)]
    assert table.column("offset").to_pylist() == [*range(ROWS // 2)] * 2
    some = reader.table(topic, start=10, stop=20, columns=["offset"], partitions=[1])
    assert some.to_pydict() == {"offset": [*range(10, 20)]}
    assert reader.table(topic, start="latest").schema == table.schema
    with pytest.raises(InputError, match="stop"):
        reader.table(topic, stop=None)  # type: ignore[arg-type]
    with pytest.raises(OffsetsLost):
        reader.table(topic, start=ROWS, stop=ROWS + 1)


def test_polars_gets_a_topic_in_one_call(reader: Reader, topic: str) -> None:
    frame = pl.DataFrame(reader.table(topic)).sort("timestamp")
    assert frame.schema["timestamp"] == pl.Datetime("us", "UTC")
    assert frame["timestamp"].to_list() == TIMES
    assert frame["headers"].to_list() == HEADERS
    assert frame["key"].cast(pl.String).n_unique() == 7


def test_pandas_gets_a_topic_in_one_call(reader: Reader, topic: str) -> None:
    frame = reader.table(topic).to_pandas().sort_values("timestamp")
    assert frame["timestamp"].dtype == pd.DatetimeTZDtype("us", "UTC")
    assert frame["timestamp"].tolist() == TIMES
    assert [None if pairs is None else list(pairs) for pairs in frame["headers"]] == HEADERS


def test_duckdb_reads_a_stream_of_a_topic(reader: Reader, topic: str) -> None:
    """In the names of its own variables, batch by batch."""
    records = reader.stream(topic)  # noqa: F841  # DuckDB looks for it
    with duckdb.connect() as connection:
        rows = connection.sql(
            """select key::varchar as key, count(*) as rows, max(timestamp) as last, max(headers[1].value) as header
            from records group by key order by key"""
        ).fetchall()
    assert [key for key, *_ in rows] == [f"user-{number}" for number in range(7)]
    assert sum(count for _, count, *_ in rows) == ROWS
    assert max(last for *_, last, _ in rows) == TIMES[-1]


def test_a_delta_table_is_written_from_a_stream(reader: Reader, topic: str, tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, reader.stream(topic))
    assert deltalake.DeltaTable(tmp_path).to_pyarrow_table().num_rows == ROWS


def test_a_stream_of_one_topic_is_sent_to_another(
    kafka: LocalCluster, reader: Reader, topic: str, new_topic: MakeTopic
) -> None:
    copy = new_topic(2)
    content = ["key", "value", "headers", "timestamp", "partition"]
    with Producer(kafka.bootstrap) as producer:
        sent = producer.send_table(copy, reader.stream(topic, columns=content)).result(SECONDS)
        assert sent.records == ROWS
    assert reader.fingerprint(copy) == reader.fingerprint(topic)


def test_frames_come_back_as_they_were_sent(
    kafka: LocalCluster, reader: Reader, topic: str, new_topic: MakeTopic
) -> None:
    """What was read may be changed and sent again by pandas and DuckDB."""
    back = new_topic(1)
    with Producer(kafka.bootstrap) as producer, duckdb.connect() as connection:
        records = reader.table(topic, columns=["key", "value", "headers", "timestamp"])
        producer.send_table(back, records.to_pandas()).result(SECONDS)
        producer.send_table(back, connection.sql("select * from records")).result(SECONDS)
        both = reader.table(back, columns=records.column_names)
        assert both.slice(0, ROWS).to_pylist() == both.slice(ROWS).to_pylist() == records.to_pylist()


def test_a_batch_of_a_consumer_is_a_frame_in_one_call(kafka: LocalCluster, topic: str) -> None:
    group = f"{topic}-group"
    with Consumer(kafka.bootstrap, group=group, topics=topic) as consumer:
        seen = 0
        while seen < ROWS:
            records = consumer.poll(SECONDS)
            assert records is not None
            frame, other = pl.DataFrame(records), records.to_pandas()
            assert frame["timestamp"].to_list() == other["timestamp"].tolist()
            assert frame.schema["headers"] == pl.List(pl.Struct({"key": pl.String, "value": pl.Binary}))
            seen += len(frame)
