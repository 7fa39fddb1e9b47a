"""Every record goes to the right partition: explicit, custom, by key like in the Java client, or by strategy."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cluster.jars import ensure_jars
from ottla.cluster.java import find_java
from ottla.cluster.local import default_cache_dir
from ottla.cluster.pinned import DEFAULT_VERSION
from ottla.errors import ConfigError, InputError
from ottla.produce.route import ByColumn, Partitions, Random, RoundRobin, Router, Sticky, Strategy, invalid, runs
from ottla.wire.columns import from_arrow
from ottla.wire.kernels.encoding import BinaryIn
from ottla.wire.partitioning import OPEN, hash_partitions, murmur2, partition_of_key

VECTORS = {
    b"": 275646681,
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

JAVA = """
import java.io.*;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

public class Hashes {
    public static void main(String[] args) throws IOException {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out));
        int count = in.readInt();
        for (int i = 0; i < count; i++) {
            byte[] key = in.readNBytes(in.readInt());
            out.writeInt(Utils.murmur2(key));
            out.writeInt(BuiltInPartitioner.partitionForKey(key, 1 + i % 997));
        }
        out.flush();
    }
}
"""

Int32s = npt.NDArray[np.int32]


def keys(values: list[bytes | None]) -> BinaryIn:
    return from_arrow(pa.nulls(len(values)), key=pa.array(values, pa.binary())).key


def no_keys() -> BinaryIn:
    return from_arrow(pa.nulls(0)).key


def int32s(*values: int) -> Int32s:
    return np.array(values, np.int32)


def router(strategy: Strategy = Sticky(3), **options: Any) -> Router:  # noqa: B008
    return Router("clicks", strategy=strategy, chance=random.Random(5), **options)


def unkeyed(subject: Router, count: int, partitions: Partitions) -> list[int]:
    chosen = subject.route(no_keys(), count, partitions=partitions)
    assert chosen.dtype == np.int32
    return [int(partition) for partition in chosen]


@st.composite
def topics(draw: st.DrawFn) -> Partitions:
    count = draw(st.integers(1, 12))
    return Partitions(count, tuple(sorted(draw(st.sets(st.integers(0, count - 1))))))


calls = st.lists(st.tuples(st.integers(0, 40), topics()), min_size=1, max_size=12)
built_in = st.sampled_from([Sticky(1), Sticky(7), Sticky(10**9), RoundRobin(), Random()])


# The key's partition


@pytest.mark.parametrize("key", VECTORS)
def test_known_hashes_are_met(key: bytes) -> None:
    assert murmur2(key) == VECTORS[key]
    assert partition_of_key(key, 1000) == (VECTORS[key] & 0x7FFFFFFF) % 1000


def _java_says(sample: list[bytes], folder: Path) -> list[tuple[int, int]]:
    source = folder / "Hashes.java"
    source.write_text(JAVA)
    jars = os.pathsep.join(map(str, ensure_jars(DEFAULT_VERSION, default_cache_dir())))
    run = subprocess.run(
        [find_java(os.environ), "-Xmx256m", "-cp", jars, source],
        input=b"".join([struct.pack(">i", len(sample)), *(struct.pack(">i", len(key)) + key for key in sample)]),
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()
    return list(struct.iter_unpack(">ii", run.stdout))


@pytest.mark.skipif(shutil.which("javac") is None, reason="compiling a Java class takes a JDK")
def test_a_hundred_thousand_keys_go_where_the_java_client_puts_them(tmp_path: Path) -> None:
    chance = random.Random(11)
    sample = [chance.randbytes(chance.randrange(201)) for _ in range(100_000)]
    sample += [bytes([255]) * length for length in range(201)]
    expected = _java_says(sample, tmp_path)
    assert [murmur2(key) for key in sample] == [hashed for hashed, _ in expected]
    assert [partition_of_key(key, 1 + i % 997) for i, key in enumerate(sample)] == [to for _, to in expected]
    by_column = np.full(len(sample), OPEN, np.int32)
    assert hash_partitions(keys([*sample]), 2**31 - 1, out=by_column) == 0
    assert by_column.tolist() == [(hashed & 0x7FFFFFFF) % (2**31 - 1) for hashed, _ in expected]


INTERPRETED = """
import random, sys, warnings
import numpy as np, pyarrow as pa
from ottla.wire.columns import from_arrow
from ottla.wire.partitioning import hash_partitions, murmur2
warnings.simplefilter("error")
chance = random.Random(3)
sample = [chance.randbytes(length) for length in range(70)]
out = np.full(len(sample), -1, np.int32)
hash_partitions(from_arrow(pa.nulls(len(sample)), key=pa.array(sample)).key, 1009, out=out)
print([murmur2(key) for key in sample], out.tolist())
"""


@pytest.mark.parametrize("variable", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_the_kernels_say_the_same_interpreted_and_with_bounds_checks(variable: str) -> None:
    chance = random.Random(3)
    sample = [chance.randbytes(length) for length in range(70)]
    environment = os.environ | {variable: "1"}
    run = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == f"{[murmur2(k) for k in sample]} {[partition_of_key(k, 1009) for k in sample]}"


@given(st.lists(st.none() | st.binary(max_size=40), max_size=60), topics(), built_in)
def test_rows_with_a_key_follow_it_and_the_others_the_strategy(
    values: list[bytes | None], partitions: Partitions, strategy: Strategy
) -> None:
    chosen = router(strategy).route(keys(values), len(values), partitions=partitions)
    for value, partition in zip(values, chosen.tolist(), strict=True):
        if value is None:
            assert partition in partitions.eligible
        else:
            assert partition == partition_of_key(value, partitions.count)


def test_a_key_stays_with_its_partition_when_brokers_are_away() -> None:
    home = partition_of_key(b"user-1", 6)
    others = tuple(partition for partition in range(6) if partition != home)
    for available in ((), (home,), others):
        partitions = Partitions(6, available)
        assert router().route(keys([b"user-1"]), 1, partitions=partitions).tolist() == [home]
        assert router().next_partition(b"user-1", partitions=partitions) == home


def test_an_empty_key_is_a_key_and_null_is_none() -> None:
    partitions = Partitions(100, (7,))
    assert router().route(keys([b"", None]), 2, partitions=partitions).tolist() == [VECTORS[b""] % 100, 7]
    assert router().next_partition(b"", partitions=partitions) == VECTORS[b""] % 100


TEXTS = ["first", None, "", "schlüssel", "a longer key than fits in the twelve bytes of a view", "first"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS, pa.string_view()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array(["before", *TEXTS, "after"]).slice(1, 6),
        pa.chunked_array([pa.array(TEXTS[:2]), pa.array(TEXTS[2:])]),
        pa.array([text and text.encode() for text in TEXTS], pa.binary_view()),
    ],
    ids=lambda column: str(column.type),
)
def test_keys_of_every_arrow_type_are_hashed_as_their_bytes(column: pa.Array) -> None:
    columns = from_arrow(pa.nulls(6), key=column)
    chosen = router().route(columns.key, columns.count, partitions=Partitions(50, (9,)))
    expected = [9 if text is None else partition_of_key(text.encode(), 50) for text in TEXTS]
    assert chosen.tolist() == expected


def _readonly(values: list[int], dtype: type) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.array(values, dtype)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("ends", "row"),
    [([0, 2, 9], 1), ([0, 2, 1], 1), ([-3, 2, 4], 0), ([0, 2], 1), ([0], 0), ([0, 2**62, 4], 0)],
    ids=["beyond the data", "descending", "negative", "too few", "only one", "far beyond"],
)
def test_a_damaged_column_is_refused_with_its_row(ends: list[int], row: int) -> None:
    column = BinaryIn(_readonly(ends, np.int64), _readonly([1, 2, 3, 4], np.uint8), _readonly([], np.uint8))
    with pytest.raises(InputError, match=f"row {row} is not inside its data"):
        hash_partitions(column, 4, out=np.full(2, OPEN, np.int32))


# Explicit partitions


def test_an_explicit_partition_wins_over_the_key() -> None:
    explicit = int32s(4, -1, 2, -1)
    chosen = router().route(keys([b"a", b"a", None, None]), 4, partitions=Partitions(5, (1,)), explicit=explicit)
    assert chosen.tolist() == [4, partition_of_key(b"a", 5), 2, 1]
    assert explicit.tolist() == [4, -1, 2, -1], "the caller's array is unchanged"


def test_rows_without_keys_fill_the_gaps_between_explicit_ones() -> None:
    explicit = int32s(-1, 0, -1, -1, 0, -1)
    chosen = router(Sticky(2)).route(no_keys(), 6, partitions=Partitions(3, (1, 2)), explicit=explicit)
    assert chosen[[1, 4]].tolist() == [0, 0]
    assert chosen[[0, 2, 3, 5]].tolist() in ([1, 1, 2, 2], [2, 2, 1, 1])


def test_explicit_partitions_that_do_not_exist_are_kept_and_named() -> None:
    explicit = int32s(3, -1, 4, -5, 2**31 - 1)
    chosen = router().route(no_keys(), 5, partitions=Partitions(4, (0,)), explicit=explicit)
    assert chosen.tolist() == [3, 0, 4, -5, 2**31 - 1]
    assert invalid(chosen, 4).tolist() == [2, 3, 4]
    assert len(invalid(chosen[:2], 4)) == 0


@pytest.mark.parametrize("explicit", [np.array([1, 2**32]), int32s(1)], ids=["64 bits", "too short"])
def test_explicit_partitions_of_another_shape_are_refused(explicit: Any) -> None:
    with pytest.raises(InputError, match=r"expected int32 of shape \(2,\)"):
        router().route(no_keys(), 2, partitions=Partitions(4), explicit=explicit)


# Strategies


@given(calls, built_in)
def test_records_without_a_key_go_where_a_leader_is_up(
    history: list[tuple[int, Partitions]], strategy: Strategy
) -> None:
    subject = router(strategy)
    for count, partitions in history:
        chosen = unkeyed(subject, count, partitions)
        assert len(chosen) == count
        assert set(chosen) <= set(partitions.eligible)


@given(st.lists(st.integers(0, 50), max_size=10), topics(), st.integers(1, 9))
def test_sticky_gives_each_partition_its_number_of_records_in_turn(
    counts: list[int], partitions: Partitions, records: int
) -> None:
    subject = router(Sticky(records))
    chosen = [partition for count in counts for partition in unkeyed(subject, count, partitions)]
    turns = [(chosen[i], chosen[i : i + records]) for i in range(0, len(chosen), records)]
    assert all(set(turn) == {partition} for partition, turn in turns)
    order = [partition for partition, _ in turns]
    eligible = list(partitions.eligible)
    assert all(eligible[(eligible.index(a) + 1) % len(eligible)] == b for a, b in pairwise(order))


@given(st.lists(st.integers(0, 50), max_size=10), topics())
def test_strict_round_robin_differs_by_one_record_at_most(counts: list[int], partitions: Partitions) -> None:
    subject = router(RoundRobin())
    chosen = Counter(dict.fromkeys(partitions.eligible, 0))
    for count in counts:
        chosen.update(unkeyed(subject, count, partitions))
    assert max(chosen.values()) - min(chosen.values()) <= 1


@given(calls, st.integers(1, 9))
def test_however_the_topic_changes_a_turn_is_never_longer(history: list[tuple[int, Partitions]], records: int) -> None:
    subject = router(Sticky(records))
    chosen: list[int] = []
    for count, partitions in history:
        chosen += unkeyed(subject, count, partitions)
    several = all(len(partitions.eligible) > 1 for _, partitions in history)
    if several:
        assert all(len(list(turn)) <= records for _, turn in groupby(chosen))


@given(calls, built_in, st.randoms(use_true_random=False))
def test_asking_first_tells_the_choice_and_changes_nothing(
    history: list[tuple[int, Partitions]], strategy: Strategy, chance: random.Random
) -> None:
    peeked, left_alone = router(strategy), router(strategy)
    for count, partitions in history:
        if chance.random() < 0.5:
            peeked.next_partition(None, partitions=Partitions(chance.randrange(1, 20)))
        announced = peeked.next_partition(None, partitions=partitions)
        chosen = unkeyed(peeked, count, partitions)
        assert chosen[:1] in ([announced], [])
        assert chosen == unkeyed(left_alone, count, partitions)


def test_a_partition_whose_leader_goes_away_loses_its_turn() -> None:
    subject = router(Sticky(10))
    (first,) = set(unkeyed(subject, 4, Partitions(3, (0, 1, 2))))
    up = tuple(partition for partition in range(3) if partition != first)
    following = (first + 1) % 3
    assert unkeyed(subject, 4, Partitions(3, up)) == [following] * 4
    assert unkeyed(subject, 7, Partitions(3, (0, 1, 2))) == [following] * 6 + [(first + 2) % 3]


def test_new_partitions_take_part() -> None:
    subject = router(RoundRobin())
    unkeyed(subject, 50, Partitions(2))
    assert sorted(unkeyed(subject, 8, Partitions(8))) == list(range(8))
    assert set(unkeyed(subject, 4, Partitions(2))) == {0, 1}, "the topic may have been recreated with fewer partitions"


def test_producers_start_at_different_partitions() -> None:
    starts = {Router("clicks").next_partition(None, partitions=Partitions(16)) for _ in range(100)}
    assert len(starts) > 4


def test_the_same_chance_gives_the_same_choices() -> None:
    first, second = (Router("clicks", strategy=Random(), chance=random.Random(1)) for _ in range(2))
    chosen = unkeyed(first, 1000, Partitions(8))
    assert chosen == unkeyed(second, 1000, Partitions(8))
    assert min(Counter(chosen).values()) > 80


def test_a_turn_continues_over_a_million_rows() -> None:
    subject = router(Sticky(1000))
    partitions = Partitions(8, (1, 3, 4))
    unkeyed(subject, 300, partitions)
    chosen = subject.route(no_keys(), 1_000_000, partitions=partitions)
    edges = np.flatnonzero(np.diff(chosen)) + 1
    assert edges[0] == 700
    assert set(np.diff(edges).tolist()) == {1000}
    assert unkeyed(subject, 701, partitions) == [int(chosen[-1])] * 700 + [int(chosen[-1 - 2 * 1000])]


# Custom strategies


@pytest.mark.parametrize(
    "answer",
    [2, np.int64(2), [2, 2, 2], np.full(3, 2, np.uint8), pa.array([2, 2, 2]), (2 for _ in range(3))],
    ids=lambda answer: type(answer).__name__,
)
def test_a_custom_strategy_answers_with_a_number_or_one_for_each_record(answer: Any) -> None:
    assert unkeyed(router(lambda count, partitions: answer), 3, Partitions(4, (0, 1))) == [2, 2, 2]


def test_a_custom_strategy_sees_only_what_is_left_to_it() -> None:
    seen: list[tuple[int, Partitions]] = []

    def strategy(count: int, partitions: Partitions) -> int:
        seen.append((count, partitions))
        return partitions.eligible[0]

    partitions = Partitions(4, (3,))
    router(strategy).route(keys([b"a", None, None, None]), 4, partitions=partitions, explicit=int32s(-1, -1, -1, 2))
    assert seen == [(2, partitions)]


def test_a_custom_strategy_keeps_the_answer_it_gave() -> None:
    numbers = iter(range(10))
    subject = router(lambda count, partitions: [next(numbers) for _ in range(count)])
    partitions = Partitions(10)
    assert [subject.next_partition(None, partitions=partitions) for _ in range(3)] == [0, 0, 0]
    assert unkeyed(subject, 3, partitions) == [0, 1, 2]
    assert unkeyed(subject, 1, partitions) == [3]
    subject.next_partition(None, partitions=partitions)
    assert unkeyed(subject, 1, Partitions(11)) == [5], "an answer about other partitions is not kept"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (4, "returned 4 for record 0; accepted are 0 to 3"),
        ([0, 1, -1], "returned -1 for record 2; accepted are 0 to 3"),
        ([0, None, 1], "returned -1 for record 1"),
        (10**30, "returned 1000000000000000000000000000000 for record 0"),
        ([0, 1], "2 partitions for 3 rows"),
        ([0.5, 1, 2], "partitions of type double"),
        (None, "asked about 3 records, failed with"),
        (True, "asked about 3 records, failed with"),
    ],
    ids=repr,
)
def test_a_wrong_answer_of_a_custom_strategy_fails_the_call(answer: Any, words: str) -> None:
    answers = iter([answer, 1])
    subject = router(lambda count, partitions: next(answers))
    with pytest.raises(InputError, match=f"topic 'clicks': the strategy.*{words}"):
        unkeyed(subject, 3, Partitions(4))
    assert unkeyed(subject, 3, Partitions(4)) == [1, 1, 1]


# Custom partitioners


def _by_length(key: bytes | None, value: bytes | None, partitions: int) -> int | None:
    return None if key is None else (len(key) + len(value or b"")) % partitions


def _column_by_length(of_keys: pa.Array, of_values: pa.Array, partitions: int) -> list[int | None]:
    pairs = zip(of_keys.to_pylist(), of_values.to_pylist(), strict=True)
    return [_by_length(key, value, partitions) for key, value in pairs]


both = pytest.mark.parametrize("partitioner", [_by_length, ByColumn(_column_by_length)], ids=["records", "column"])


@both
def test_a_custom_partitioner_decides_or_passes(partitioner: Any) -> None:
    subject = router(partitioner=partitioner)
    of_keys, of_values = pa.array([b"ab", None, b"c"]), pa.array([b"x", b"y", None])
    assert subject.custom(of_keys, of_values, 10).tolist() == [3, -1, 1]
    assert subject.custom(None, of_values, 10).tolist() == [-1, -1, -1]
    assert [subject.custom_one(b"ab", b"x", 10), subject.custom_one(None, b"x", 10)] == [3, -1]


@both
def test_a_custom_partitioner_is_not_asked_about_explicit_rows(partitioner: Any) -> None:
    of_keys, of_values = pa.array([b"ab", b"abc", b"c"]), pa.array([b"x", b"y", b"z"])
    subject = router(partitioner=partitioner)
    chosen = subject.custom(of_keys, of_values, 10, explicit=int32s(-1, 9, -1))
    assert chosen.tolist() == [3, 9, 2]
    assert subject.custom(of_keys, of_values, 10, explicit=int32s(1, 9, 1)).tolist() == [1, 9, 1]


def test_a_partitioner_gets_the_bytes_of_texts() -> None:
    seen: list[tuple[bytes | None, bytes | None, int]] = []

    def partitioner(key: bytes | None, value: bytes | None, partitions: int) -> None:
        seen.append((key, value, partitions))

    router(partitioner=partitioner).custom(pa.array(["ü", None]).dictionary_encode(), pa.array(["a", "b"]), 3)
    assert seen == [("ü".encode(), b"a", 3), (None, b"b", 3)]


def test_without_a_partitioner_all_rows_are_left_open() -> None:
    assert router().custom(None, pa.array([b"a", b"b"]), 3).tolist() == [-1, -1]
    assert router().custom_one(None, b"a", 3) == -1


@pytest.mark.parametrize("answer", [4, -1, 1.5, "1", True], ids=repr)
def test_a_wrong_answer_of_a_partitioner_names_topic_and_row(answer: Any) -> None:
    subject = router(partitioner=lambda key, value, partitions: answer if value == b"bad" else 0)
    values = pa.array([b"good", b"good", b"bad"])
    with pytest.raises(InputError, match=r"topic 'clicks', row 2: the partitioner returned .*accepted are 0 to 3 and"):
        subject.custom(None, values, 4)
    with pytest.raises(InputError, match="row 2"):
        subject.custom(None, values, 4, explicit=int32s(0, -1, -1))
    assert subject.custom(None, values.slice(0, 2), 4).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([0, 4, 0], "row 1: the column partitioner returned 4; accepted are 0 to 3"),
        (np.array([0, 0, 2**32 + 1]), "row 2: the column partitioner returned 4294967297"),
        ([0, -2, 0], "row 1: the column partitioner returned -2"),
        ([0, 1], "rows 0 to 2: the column partitioner failed with ValueError: 2 partitions for 3 rows"),
        (["a", "b", "c"], "rows 0 to 2: .*partitions of type string"),
        (7, "rows 0 to 2: the column partitioner failed with"),
        (np.zeros((3, 2), np.int32), "rows 0 to 2: the column partitioner failed with"),
    ],
    ids=str,
)
def test_a_wrong_answer_of_a_column_partitioner_names_topic_and_row(answer: Any, words: str) -> None:
    subject = router(partitioner=ByColumn(lambda of_keys, of_values, partitions: answer))
    with pytest.raises(InputError, match=f"topic 'clicks', {words}"):
        subject.custom(None, pa.array([b"a", b"b", b"c"]), 4)


@pytest.mark.parametrize(
    "answer", [pa.array([1, None, -1], pa.int8()), pa.array([1, None, None], pa.uint16()), [1, None, -1]], ids=str
)
def test_a_column_partitioner_passes_with_null_or_minus_one(answer: Any) -> None:
    subject = router(partitioner=ByColumn(lambda of_keys, of_values, partitions: answer))
    assert subject.custom(None, pa.array([b"a", b"b", b"c"]), 4).tolist() == [1, -1, -1]


def _raises(*_: Any) -> int:
    raise KeyError("no such user")


@pytest.mark.parametrize(
    "call",
    [
        lambda: router(partitioner=_raises).custom(None, pa.array([b"a"]), 4),
        lambda: router(partitioner=_raises).custom_one(None, b"a", 4),
        lambda: router(partitioner=ByColumn(_raises)).custom(None, pa.array([b"a"]), 4),
        lambda: router(_raises).route(no_keys(), 1, partitions=Partitions(4)),
    ],
    ids=["partitioner", "one record", "column partitioner", "strategy"],
)
def test_what_a_custom_function_raises_is_the_cause(call: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=r"topic 'clicks'.*KeyError: 'no such user'") as failure:
        call()
    assert isinstance(failure.value.__cause__, KeyError)


# Settings


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sticky(0),
        lambda: Sticky(1.5),  # type: ignore[arg-type]
        lambda: Sticky(True),
        lambda: ByColumn(None),  # type: ignore[arg-type]
        lambda: Router("clicks", strategy="sticky"),  # type: ignore[arg-type]
        lambda: Router("clicks", strategy=RoundRobin),  # type: ignore[arg-type]
        lambda: Router("clicks", partitioner=3),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings_are_refused_with_what_is_accepted(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=r"must be|accepted are|needs"):
        make()


@pytest.mark.parametrize(("count", "available"), [(0, ()), (2, (0, 2)), (2, (1, 0)), (2, (0, 0)), (2, (-1,))])
def test_partitions_that_cannot_be_are_refused(count: int, available: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"at least one|must ascend"):
        Partitions(count, available)


# Grouping rows by partition


def listed(partitions: Int32s) -> list[tuple[int, list[int]]]:
    numbers = np.arange(len(partitions))
    return [(partition, numbers[rows].tolist()) for partition, rows in runs(partitions)]


@given(
    st.lists(st.tuples(st.integers(0, 5) | st.sampled_from([-1, 70_000, 2**31 - 1]), st.integers(1, 40)), max_size=12)
)
def test_runs_hold_every_row_once_in_order(stretches: list[tuple[int, int]]) -> None:
    rows = [partition for partition, length in stretches for _ in range(length)]
    expected = {p: [i for i, partition in enumerate(rows) if partition == p] for p in sorted(set(rows))}
    assert listed(np.array(rows, np.int32)) == list(expected.items())


@pytest.mark.parametrize("length", [1, 10, 1000])
def test_rows_that_lie_together_are_a_slice(length: int) -> None:
    partitions = np.repeat(int32s(3, 0, 2), length)
    assert dict(runs(partitions)) == {
        0: slice(length, 2 * length),
        2: slice(2 * length, 3 * length),
        3: slice(0, length),
    }
    assert list(runs(partitions[:length])) == [(3, slice(0, length))]


def test_no_rows_have_no_runs() -> None:
    assert list(runs(int32s())) == []
    assert router().route(no_keys(), 0, partitions=Partitions(3)).tolist() == []
