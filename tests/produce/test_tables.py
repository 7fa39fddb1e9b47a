"""`send_table` takes the tables of other libraries, and streams in bounded memory, and loses no row of either."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest
from tests.waiting import eventually

from ottla import Batching, Buffering, Oversize, Producer, WhenFull
from ottla.errors import BufferFull, ErrorCode, InputError, NotDelivered, OttlaError, RecordTooLarge, StreamFailed
from ottla.produce.delivery import Shipment
from ottla.produce.tables import Batches, opened, sent_stream
from ottla.testing import FakeKafka

from .producer.stand import SOON, new, stuck, values

NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC)
KEYS, VALUES = [b"k1", None, b"k3"], [b"v1", b"v2", None]
HEADERS: list[Any] = [[{"key": "h", "value": b"x"}], None, []]
TIMES = [NOON, NOON + timedelta(seconds=1), NOON + timedelta(days=1)]


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"t": 1, "other": 1, "many": 4}, auto_create=None) as cluster:
        yield cluster


class Exported:
    """A table of a library that nobody has heard of."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def plain() -> pa.Table:
    headers = pa.array(HEADERS, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    return pa.table({"key": KEYS, "value": VALUES, "headers": headers, "timestamp": TIMES})


def in_polars() -> pl.DataFrame:
    return pl.DataFrame({"key": KEYS, "value": VALUES, "headers": HEADERS, "timestamp": TIMES})


def in_pandas() -> pd.DataFrame:
    frame = pd.DataFrame({"key": [b"", *KEYS], "value": ["", *VALUES]})
    frame["headers"] = [None, *HEADERS]
    frame["timestamp"] = [NOON, *TIMES]
    return frame[frame["value"] != ""]  # which leaves an index without a name


def in_duckdb() -> Any:
    rows = plain()
    return duckdb.sql("select * from rows") if len(rows) else None


TABLES: dict[str, Callable[[], Any]] = {
    "pyarrow Table": plain,
    "pyarrow RecordBatch": lambda: plain().to_batches()[0],
    "pyarrow RecordBatchReader": lambda: plain().to_reader(max_chunksize=2),
    "polars DataFrame": in_polars,
    "pandas DataFrame": in_pandas,
    "DuckDB relation": in_duckdb,
    "any __arrow_c_stream__": lambda: Exported(plain()),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_every_library_are_sent_whole(kafka: FakeKafka, name: str) -> None:
    with new(kafka) as producer:
        sent = producer.send_table("t", TABLES[name]()).result(SOON)
    assert sent.records == 3
    records = kafka.records("t", 0)
    assert [(record.key, record.value) for record in records] == list(zip(KEYS, VALUES, strict=True))
    assert [tuple(record.headers) for record in records] == [(("h", b"x"),), (), ()]
    assert [record.timestamp for record in records] == [when.timestamp() for when in TIMES]


def test_categories_of_polars_are_sent(kafka: FakeKafka) -> None:
    """Arrow cannot look up the views that Polars has in them."""
    pages = ["home", None, "cart", "home"]
    frame = pl.DataFrame(
        {"value": pages, "key": pages, "topic": ["t", "other", "t", "t"], "partition": [0, 0, None, 0]},
        schema={
            "value": pl.Categorical,
            "key": pl.Enum(["cart", "home"]),
            "topic": pl.Categorical,
            "partition": pl.UInt8,
        },
    )
    with new(kafka) as producer:
        assert producer.send_table(None, frame).result(SOON).records == 4
        # Each batch of a stream has categories of its own.
        parts = pa.Table.from_batches([part for rows in (frame, frame[2:]) for part in pa.table(rows).to_batches()])
        assert producer.send_table("t", parts.select(["value"])).result(SOON).records == 6
    texts = [None if page is None else page.encode() for page in pages]
    first = [texts[0], texts[2], texts[3]]
    assert [record.key for record in kafka.records("t", 0)][:3] == first
    assert values(kafka) == [*first, *texts, *texts[2:]]
    assert values(kafka, "other") == [None]


WRONG: list[tuple[str, Callable[[], Any], str]] = [
    ("a lazy frame", lambda: pl.LazyFrame({"value": ["a"]}), r"not polars.LazyFrame: call collect\(\) first"),
    ("a series", lambda: pl.Series(["a"]), "the polars.Series cannot be read as a table: .*non-struct"),
    ("a list", lambda: [b"x"], "a table is anything with __arrow_c_stream__ .*, not list"),
    ("mixed objects", lambda: pd.DataFrame({"value": [1, b"x"]}), "the pandas.DataFrame cannot be read as a table: "),
    ("numbers", lambda: pl.DataFrame({"value": [1]}), "column value has type int64"),
    ("no value", lambda: pl.DataFrame({"v": ["a"]}), "the table has no column value, only v; known are value, key"),
    ("another column", lambda: pl.DataFrame({"value": ["a"], "x": [1]}), "the table has the columns x; known are"),
    ("an empty stream", lambda: pa.RecordBatchReader.from_batches(pa.schema([("v", pa.binary())]), []), "no column"),
]


@pytest.mark.parametrize(("make", "text"), [pytest.param(make, text, id=name) for name, make, text in WRONG])
def test_what_is_no_table_of_records_is_refused(kafka: FakeKafka, make: Callable[[], Any], text: str) -> None:
    with new(kafka) as producer, pytest.raises(InputError, match=text):
        producer.send_table("t", make())
    assert not values(kafka)


# Streams

SCHEMA = pa.schema([("value", pa.binary())])
PADDING = bytes(1000)


def numbered(first: int, count: int = 100) -> pa.RecordBatch:
    return pa.record_batch([[b"%d " % number + PADDING for number in range(first, first + count)]], schema=SCHEMA)


def numbers(kafka: FakeKafka, topic: str = "t") -> list[int]:
    return [int((value or b"").split()[0]) for value in values(kafka, topic)]


class Stream:
    """A stream that knows how far it was read, and may fail after some batches."""

    def __init__(self, batches: int, *, fails: Exception | None = None) -> None:
        self.read = 0
        self._batches = batches
        self._fails = fails

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(SCHEMA, self._rows())

    def _rows(self) -> Iterator[pa.RecordBatch]:
        for number in range(self._batches):
            self.read += 1
            yield numbered(100 * number)
        if self._fails is not None:
            raise self._fails


def test_no_more_of_a_stream_is_read_than_the_buffer_holds_and_the_rest_can_be_sent(kafka: FakeKafka) -> None:
    stuck(kafka)
    stream = Stream(200)
    with new(kafka, buffering=Buffering(bytes=1 << 20, wait=0.3)) as producer:
        with pytest.raises(StreamFailed, match=r"stopped after .* bytes wait to be delivered") as stopped:
            producer.send_table("t", stream)
        assert isinstance(stopped.value.cause, BufferFull)
        assert stopped.value.accepted < 2000
        assert stream.read < 20
        kafka.clear_faults()
        assert stopped.value.rest is not None
        producer.send_table("t", stopped.value.rest).result(SOON)
    assert numbers(kafka) == list(range(20_000))


def test_a_long_stream_leaves_little_behind(kafka: FakeKafka) -> None:
    with new(kafka, buffering=Buffering(bytes=1 << 20)) as producer:
        delivery: Any = producer.send_table("many", Stream(1000))
        sent = delivery.result(SOON)
    assert sent.records == 100_000
    assert sum(at.stop - at.start for at in sent.ranges) == 100_000
    assert len(sent.ranges) == 4
    assert len(delivery._sent) < 100
    assert list(delivery.outcomes()) == []


def test_a_stream_of_tiny_batches_is_charged_for_what_each_of_them_takes(kafka: FakeKafka) -> None:
    """Regression: a row of 10 bytes in a batch of its own took 1,400 bytes and counted as 26."""
    row = pa.record_batch([[b"0123456789"]], schema=SCHEMA)
    buffering = Buffering(bytes=1 << 20, when_full=WhenFull.REFUSE)
    stuck(kafka)
    for address in (kafka.bootstrap, "127.0.0.1:1"):  # in batches, and without partitions
        stream = pa.RecordBatchReader.from_batches(SCHEMA, itertools.repeat(row, 5000))
        producer = Producer(address, buffering=buffering, delivery_timeout=SOON)
        with pytest.raises(StreamFailed) as stopped:
            producer.send_table("t", stream)
        assert 500 < stopped.value.accepted < 2000
        with pytest.raises(NotDelivered):
            producer.close(0.01)
        assert producer._budget.used == 0


def test_a_stream_that_fails_says_how_many_rows_were_accepted(kafka: FakeKafka) -> None:
    """The error of the program's own generator is the cause; through another library, its text is."""
    boom = ValueError("the file is damaged")
    with new(kafka) as producer:
        with pytest.raises(
            StreamFailed, match="after 300 rows, which were accepted: ValueError: the file is"
        ) as stopped:
            producer.send_table("t", Stream(3, fails=boom).reader())
        assert stopped.value.accepted == 300
        assert stopped.value.cause is boom
        assert stopped.value.rest is None
        with pytest.raises(StreamFailed, match=r"after 0 rows.*the file is damaged"):
            producer.send_table("t", Stream(0, fails=boom))
        producer.flush(SOON)
    assert numbers(kafka) == list(range(300))


def test_a_batch_that_cannot_be_sent_stops_the_stream_and_is_in_the_rest(kafka: FakeKafka) -> None:
    large = pa.record_batch([[b"900 " + bytes(5000)]], schema=SCHEMA)
    batches = [numbered(0), large, numbered(100)]
    with new(kafka, max_record_bytes=2000) as producer:
        with pytest.raises(StreamFailed, match=r"after 100 rows.*row 100 takes 5,0.. bytes") as stopped:
            producer.send_table("t", pa.RecordBatchReader.from_batches(SCHEMA, batches))
        assert isinstance(stopped.value.cause, RecordTooLarge)
        assert stopped.value.rest is not None
        assert [batch.num_rows for batch in stopped.value.rest] == [1, 100]
        # As the first batch it is an ordinary error: nothing was accepted.
        with pytest.raises(RecordTooLarge):
            producer.send_table("t", pa.RecordBatchReader.from_batches(SCHEMA, [large]))
    assert numbers(kafka) == list(range(100))


def test_a_stream_stops_when_records_fail(kafka: FakeKafka) -> None:
    """Else a stream of hours to a misspelt topic would be read to its end."""
    kafka.fail("Produce", ErrorCode.topic_authorization_failed, times=None)
    stream = Stream(5000)
    producer = new(kafka, buffering=Buffering(bytes=1 << 20), delivery_timeout=5)
    with pytest.raises(StreamFailed, match="TOPIC_AUTHORIZATION_FAILED") as stopped:
        producer.send_table("t", stream)
    assert isinstance(stopped.value.cause, NotDelivered)
    assert stream.read < 1000
    assert stopped.value.accepted == 100 * stream.read
    with pytest.raises(NotDelivered, match=f"{stopped.value.accepted:,} records were not delivered"):
        producer.close()


def test_the_rows_of_a_stream_that_failed_are_named(kafka: FakeKafka) -> None:
    """With `on_failed` the program takes care of failures itself, so the stream goes on."""
    kafka.fail("Produce", ErrorCode.invalid_record, times=3)
    failed: list[int] = []
    with new(
        kafka, batching=Batching(records=50, linger=0.001), on_failed=lambda batch: failed.append(batch.count)
    ) as producer:
        delivery = producer.send_table("t", Stream(100))
        decided = list(delivery.outcomes(SOON))
        assert isinstance(delivery.exception(), NotDelivered)
        with pytest.raises(NotDelivered, match="INVALID_RECORD"):
            delivery.result()
    rows = list(itertools.chain.from_iterable(part.rows.tolist() for part in decided))
    assert len(rows) == sum(failed) == 150
    assert sorted(numbers(kafka) + rows) == list(range(10_000))


def closed_while_it_waits(kafka: FakeKafka, send: Callable[[Producer], object]) -> OttlaError:
    """What sending raises whose producer is closed while the buffer is full."""
    stuck(kafka)
    producer = new(kafka, buffering=Buffering(bytes=9 << 20, wait=SOON))
    raised: list[OttlaError] = []

    def run() -> None:
        try:
            send(producer)
        except OttlaError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: producer._budget.waiting, "the call waits for room")
    with pytest.raises(NotDelivered):
        producer.close(0.01)
    thread.join(SOON)
    return raised[0]


def test_whatever_stops_a_stream_within_a_batch_says_how_many_rows_were_accepted(kafka: FakeKafka) -> None:
    batches = [numbered(0), numbered(100, 30_000)]
    error = closed_while_it_waits(
        kafka, lambda producer: producer.send_table("t", pa.RecordBatchReader.from_batches(SCHEMA, batches))
    )
    assert isinstance(error, StreamFailed)
    assert "this producer was closed" in str(error.cause)
    assert 100 < error.accepted < 30_100
    assert error.rest is not None
    assert error.rest.read_all()["value"][0].as_py() == b"%d " % error.accepted + PADDING


def test_whatever_stops_a_table_or_list_says_how_many_rows_were_accepted(kafka: FakeKafka) -> None:
    rows = numbered(0, 30_000)
    error = closed_while_it_waits(kafka, lambda producer: producer.send_table("t", rows))
    assert 0 < error.accepted < 30_000
    error = closed_while_it_waits(kafka, lambda producer: producer.send_many("t", rows["value"].to_pylist()))
    assert 0 < error.accepted < 30_000


def damaged() -> pa.RecordBatch:
    """A batch whose dictionary lacks an entry."""
    codes, pages = pa.array([0, 7], pa.int32()), pa.array([b"home"])
    return pa.record_batch({"value": pa.DictionaryArray.from_arrays(codes, pages, safe=False)})


def test_errors_of_other_libraries_and_of_the_programs_functions_stop_a_stream_too(kafka: FakeKafka) -> None:
    def refuse(record: Oversize) -> None:
        raise ValueError("no place for it")

    good = pa.record_batch({"value": pa.array([b"home"]).dictionary_encode()})
    large = pa.record_batch({"value": pa.array([bytes(5000)]).dictionary_encode()})
    with new(kafka, max_record_bytes=2000, on_oversize=refuse) as producer:
        for bad, text in ((damaged(), "column value is damaged"), (large, "ValueError: no place for it")):
            with pytest.raises(StreamFailed, match=f"after 2 rows, which were accepted: {text}") as stopped:
                producer.send_table("t", pa.RecordBatchReader.from_batches(good.schema, [good, good, bad, good]))
            assert stopped.value.accepted == 2
            assert stopped.value.rest is not None
            assert [batch.num_rows for batch in stopped.value.rest] == [bad.num_rows, 1]


def test_sending_the_rest_again_and_again_is_no_chain_of_streams() -> None:
    """Regression: each rest was a reader around the one before. After some 10,000 the process crashed."""

    def refuse(rows: pa.Table, first: int) -> list[Shipment]:
        error = BufferFull(waiting_bytes=1, limit_bytes=1, seconds=0.0, holding="")
        error.accepted = rows.num_rows // 2
        raise error

    def batches(stream: object) -> Batches:
        source = opened(stream)
        assert isinstance(source, Batches)
        return source

    def rest_of(stream: object) -> pa.RecordBatchReader:
        with pytest.raises(StreamFailed) as stopped:
            sent_stream(batches(stream), refuse, stops=True)
        assert stopped.value.rest is not None
        return stopped.value.rest

    rest = rest_of(Stream(3))
    former = weakref.ref(rest)
    for _ in range(3):
        rest = rest_of(rest)
    gc.collect()
    assert former() is None
    values = rest.read_all()["value"].to_pylist()
    assert [int(value.split()[0]) for value in values] == list(range(93, 300))


def test_what_was_refused_as_the_first_batch_of_a_rest_is_still_in_it(kafka: FakeKafka) -> None:
    batches = [numbered(0), pa.record_batch([[b"100 " + bytes(5000)]], schema=SCHEMA), numbered(101)]
    with new(kafka, max_record_bytes=2000) as producer:
        with pytest.raises(StreamFailed) as stopped:
            producer.send_table("t", pa.RecordBatchReader.from_batches(SCHEMA, batches))
        rest = stopped.value.rest
        assert rest is not None
        for _ in range(2):
            with pytest.raises(RecordTooLarge):
                producer.send_table("t", rest)
    with new(kafka) as producer:
        producer.send_table("t", rest).result(SOON)
    assert numbers(kafka) == list(range(201))


def test_a_stream_whose_first_batch_was_refused_can_be_sent_again(kafka: FakeKafka) -> None:
    """Regression: that batch had been read, and the second call began with the next one."""
    attempts: list[int] = []

    def moody(key: bytes | None, value: bytes | None, count: int) -> int:
        attempts.append(1)
        if len(attempts) <= 2:
            raise ConnectionError("the registry is away")
        return 0

    stream = pa.RecordBatchReader.from_batches(SCHEMA, [numbered(0), numbered(100)])
    with new(kafka, partitioner=moody) as producer:
        for _ in range(2):
            with pytest.raises(InputError, match="the registry is away"):
                producer.send_table("t", stream)
        producer.send_table("t", stream).result(SOON)
    assert numbers(kafka) == list(range(200))


def test_a_stream_is_sent_by_one_call_at_a_time(kafka: FakeKafka) -> None:
    refused: list[InputError] = []

    def rows() -> Iterator[pa.RecordBatch]:
        yield numbered(0)
        with pytest.raises(InputError, match="another call is sending this stream") as caught:
            producer.send_table("t", stream)
        refused.append(caught.value)
        yield numbered(100)

    stream = pa.RecordBatchReader.from_batches(SCHEMA, rows())
    with new(kafka) as producer:
        producer.send_table("t", stream).result(SOON)
        assert producer.send_table("t", stream).result(SOON).records == 0
    assert len(refused) == 1
    assert numbers(kafka) == list(range(200))


def test_the_error_of_a_stream_can_leave_its_process() -> None:
    rest = pa.RecordBatchReader.from_batches(SCHEMA, [])
    error = StreamFailed("broken", accepted=7, cause=ValueError("broken"), rest=rest)
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.accepted, copied.rest) == (str(error), 7, None)
