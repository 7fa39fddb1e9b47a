"""The pure parts of a mirror: which batches are passed on, what a takeover concludes, names, rates and rules."""

from __future__ import annotations

import math
import socket
import time
from dataclasses import replace
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest

from ottla.admin import OffsetAt
from ottla.admin.settings import Setting, SettingSource
from ottla.admin.topics import TopicDescription
from ottla.errors import ConfigError, ErrorCode, InputError, MirrorError
from ottla.fetch.cursor import Cursor, Piece, ResponseMemory
from ottla.jobs.mirror_guards import _is_alive
from ottla.mirror import holding
from ottla.mirror.holding import Holding, Taker
from ottla.mirror.journal import Journal
from ottla.mirror.lane import Lane, Outbound, Phase, Verdict
from ottla.mirror.passage import Acceptance, Reason, passed_on, reason_to_recode
from ottla.mirror.recode import Recoder
from ottla.mirror.rules import Policy
from ottla.mirror.takeover import Fault, Finding, Position, Tail, locate, scan_start
from ottla.mirror.terms import Mark, OffsetMap, Run, Term, joined
from ottla.mirror.throttle import Throttle
from ottla.mirror.topics import Rename, check_link_name, left_out, plan, select
from ottla.model import TopicPartition
from ottla.net.deadline import Deadline
from ottla.net.metadata import Partition
from ottla.produce.identity import ProducerIdentity
from ottla.wire.batch import (
    HAS_DELETE_HORIZON,
    IS_CONTROL,
    IS_LOG_APPEND,
    IS_TRANSACTIONAL,
    Batch,
    BatchHeader,
    Codec,
    pack_header,
)
from ottla.wire.columns import from_list
from ottla.wire.encode import encode
from ottla.wire.restamp import restamp

SOURCE, TARGET = UUID(int=1), UUID(int=2)


def header(**changes: int) -> BatchHeader:
    (batch,) = encode(from_list([b"a", b"b", b"c"]), now_ms=1000)
    return restamp(batch.header, base_offset=10)._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "accepts", "reason"),
    [
        ({}, {}, None),
        ({"attributes": IS_TRANSACTIONAL}, {}, None),
        ({"count": 2}, {}, Reason.GAPS),
        ({"attributes": IS_LOG_APPEND}, {}, Reason.APPEND_TIME),
        ({"attributes": IS_LOG_APPEND}, {"append_time": True}, None),
        ({}, {"codec": Codec.NONE}, None),
        ({}, {"codec": Codec.ZSTD}, Reason.CODEC),
        ({"attributes": int(Codec.ZSTD)}, {"codec": Codec.ZSTD}, None),
        ({}, {"max_bytes": 80}, Reason.TOO_LARGE),
    ],
)
def test_a_batch_is_passed_on_unless_the_target_would_refuse_or_rewrite_it(
    changes: dict[str, int], accepts: dict[str, object], reason: Reason | None
) -> None:
    acceptance = Acceptance(**{"max_bytes": 1000, **accepts})  # type: ignore[arg-type]
    assert reason_to_recode(header(**changes), acceptance, start=0, stop=100) is reason


@pytest.mark.parametrize(("start", "stop"), [(11, 100), (0, 12)])
def test_a_batch_that_is_wanted_in_part_is_cut(start: int, stop: int) -> None:
    assert reason_to_recode(header(), Acceptance(max_bytes=1000), start=start, stop=stop) is Reason.CUT


def test_a_batch_that_is_passed_on_is_a_plain_idempotent_one_with_a_valid_checksum() -> None:
    (batch,) = encode(from_list([b"a", b"b", b"c"]), now_ms=1000)
    attributes = IS_TRANSACTIONAL | IS_LOG_APPEND | HAS_DELETE_HORIZON
    received = restamp(batch.header, base_offset=10, leader_epoch=4, attributes=attributes)
    sent = passed_on(received, producer_id=7, epoch=2, sequence=40)
    whole = Batch.parse(pack_header(sent) + bytes(batch.records))
    whole.verify()
    assert (sent.base_offset, sent.leader_epoch, sent.attributes) == (0, -1, 0)
    assert (sent.producer_id, sent.producer_epoch, sent.base_sequence) == (7, 2, 40)


def term(**changes: object) -> Term:
    usual = {
        "index": 3,
        "producer_id": 7,
        "epoch": 3,
        "source_id": SOURCE,
        "target_id": TARGET,
        "start": Mark(0, 100, 51),
        "runs": (Run(0, 100, 51, 5), Run(10, 120, 61, 6)),
        "mark": Mark(12, 122, 63),
    }
    return Term(**{**usual, **changes})  # type: ignore[arg-type]


def written(
    sequence: int, count: int, offset: int, *, epoch: int = 3, producer: int = 7, control: bool = False
) -> BatchHeader:
    attributes = IS_CONTROL | IS_TRANSACTIONAL if control else 0
    return BatchHeader(offset, 60, 0, 2, 0, attributes, count - 1, 0, 0, producer, epoch, sequence, count)


def located(terms: list[Term], headers: list[BatchHeader], marker: int, *, log_start: int = 0, **ids: UUID) -> Position:
    tail = Tail(headers, log_start, marker)
    return locate(terms, tail, producer_id=7, **{"source_id": SOURCE, "target_id": TARGET, **ids})


def test_the_last_batch_and_its_run_give_the_source_offset() -> None:
    position = located([term()], [written(10, 2, 61), written(12, 5, 63)], 68)
    assert (position.source, position.leader_epoch, position.previous_count, position.findings) == (127, 6, 17, ())


def test_without_a_batch_behind_the_mark_the_mark_counts() -> None:
    position = located([term()], [written(10, 2, 61)], 63)
    assert (position.source, position.previous_count) == (122, 12)


def test_a_term_that_wrote_nothing_begins_where_it_was_to_begin() -> None:
    position = located([term(runs=(), mark=None, start_epoch=4)], [written(0, 1, 50, control=True)], 51)
    assert (position.source, position.leader_epoch, position.previous_count) == (100, 4, 0)


def test_a_term_of_an_earlier_version_has_no_epoch_for_its_start() -> None:
    row = term(start_epoch=4).to_json()
    assert Term.from_json(row).start_epoch == 4
    del row["start_epoch"]
    assert Term.from_json(row).start_epoch == -1


def test_sequences_wrap_around_and_numbers_do_not() -> None:
    late = term(mark=Mark((1 << 31) - 2, 5, 60), runs=(Run(0, 0, 0, 1),))
    position = located([late], [written((1 << 31) - 2, 4, 60)], 64)
    assert position.previous_count == (1 << 31) + 2


@pytest.mark.parametrize(
    ("headers", "marker", "options", "fault"),
    [
        ([written(12, 5, 63), written(-1, 2, 68, producer=-1)], 70, {}, Fault.FOREIGN_WRITER),
        ([written(12, 5, 63), written(0, 2, 68, producer=99)], 70, {}, Fault.FOREIGN_WRITER),
        ([], 55, {}, Fault.TARGET_LOST_RECORDS),
        ([], 80, {"log_start": 80}, Fault.UNPROVEN),
        ([written(12, 5, 63, epoch=9)], 70, {}, Fault.JOURNAL_LOST),
        ([written(12, 5, 63)], 70, {"source_id": uuid4()}, Fault.SOURCE_REPLACED),
        ([], 3, {"target_id": uuid4()}, Fault.TARGET_REPLACED),
    ],
)
def test_what_does_not_fit_together_is_found(
    headers: list[BatchHeader], marker: int, options: dict[str, UUID], fault: Fault
) -> None:
    position = located([term()], headers, marker, **options)  # type: ignore[arg-type]
    assert [finding.fault for finding in position.findings] == [fault]


def test_a_new_link_finds_a_target_that_is_not_empty() -> None:
    assert [finding.fault for finding in located([], [written(0, 2, 0, producer=9)], 2).findings] == [Fault.NOT_EMPTY]
    assert [finding.fault for finding in located([], [written(0, 2, 0)], 2).findings] == [Fault.JOURNAL_LOST]
    assert located([], [], 0).findings == ()


def test_lost_records_are_mirrored_again_from_the_offset_where_the_log_ends_now() -> None:
    position = located([term()], [written(0, 10, 51), written(10, 1, 61)], 62)
    assert (position.source, position.previous_count) == (121, 11)
    assert [finding.fault for finding in position.findings] == [Fault.TARGET_LOST_RECORDS]


@pytest.mark.parametrize("marker", [62, 63, 80])
def test_lost_records_are_found_however_many_takeovers_have_appended_markers_since(marker: int) -> None:
    markers = [written(-1, 1, offset, epoch=9, control=True) for offset in range(56, marker)]
    for headers in ([header for header in markers if header.base_offset >= 62], [written(0, 5, 51), *markers]):
        position = located([term()], headers, marker)
        assert [finding.fault for finding in position.findings] == [Fault.TARGET_LOST_RECORDS]
    assert (position.source, position.previous_count) == (105, 5)


def test_lost_records_of_an_earlier_term_are_found_though_the_last_one_wrote_none() -> None:
    idle = term(index=4, epoch=4, start=Mark(0, 122, 64), runs=(), mark=None, previous=(7, 3), previous_count=12)
    own = written(-1, 1, 63, epoch=4, control=True)
    assert located([term(), idle], [own], 70).findings == ()
    for headers in ([written(0, 5, 51)], [written(-1, 1, 63, epoch=9, control=True)]):
        position = located([term(), idle], headers, 70)
        assert [finding.fault for finding in position.findings] == [Fault.TARGET_LOST_RECORDS]


def test_if_nothing_of_the_link_is_left_all_of_it_is_mirrored_again() -> None:
    position = located([term()], [written(-1, 1, offset, epoch=9, control=True) for offset in range(70)], 70)
    assert (position.source, position.previous_count) == (100, 0)


def test_the_log_is_read_from_the_last_acknowledged_record_on() -> None:
    assert scan_start([term()], 0) == 62
    assert scan_start([term()], 70) == 70
    assert scan_start([], 4) == 4


def test_a_marker_right_before_the_mark_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TopicPartition("t", 0)
    log = [written(0, 5, 51), *(written(-1, 1, offset, epoch=9, control=True) for offset in range(56, 62))]
    ends = {target: OffsetAt(62, -1, -1)}
    monkeypatch.setattr(holding, "Admin", lambda _: Mock(list_offsets=Mock(return_value=ends)))
    monkeypatch.setattr(holding, "_headers", lambda _, unit: [h for h in log if h.base_offset >= unit.start])
    tail = holding._read_tail(Mock(), target, ProducerIdentity(7, 9), start=62, log_start=0, limit=Deadline.after(5.0))
    assert tail.marker == 56


def test_terms_that_wrote_nothing_are_removed_from_the_journal() -> None:
    idle = [
        term(index=4 + n, epoch=4 + n, start=Mark(0, 122, 64 + n), runs=(), mark=None, previous=(7, 3 + n))
        for n in range(3)
    ]
    terms = (term(), replace(idle[0], previous_count=12), *idle[1:])
    journal = Mock(chunks=lambda _, each: [each])
    held = Holding(ProducerIdentity(7, 9), Position(122, -1, terms[-1], 0), terms, 70, 0, None)
    place = TopicPartition("t", 0)
    Taker(Mock(), Mock(), journal, Policy())._prune(place, place, held)
    assert [entry.term.index for entry in journal.remove.call_args.args[0]] == [4, 5]


def test_what_is_in_the_journal_and_no_entry_harms_nobody() -> None:
    journal = Journal(Mock(), link="x")
    for key in (b"x/t/0/7-3/0", b"x#holder", b"\xff", None):
        for value in (b"[" * 200_000, b"\xff", b"{}", b"[]", None):
            journal._learn(key, value)
    assert journal._entries == {}
    for changes in ({"pid": 10**30}, {"time": time.time() + 1e6, "host": "x"}, {"time": math.nan, "host": "x"}):
        assert not _is_alive({"pid": 1, "host": socket.gethostname(), "time": time.time(), **changes})


def test_terms_survive_the_journal_in_parts() -> None:
    whole = term()
    assert Term.from_json(whole.to_json()) == whole
    first, second = term(runs=whole.runs[:1]), term(chunk=1, runs=whole.runs)
    assert joined([first, second]).runs == whole.runs


def test_the_map_of_offsets_skips_gaps_and_ends_where_the_mirror_ends() -> None:
    offsets = OffsetMap([term()])
    assert [offsets.target_of(offset) for offset in (99, 100, 109, 115, 120, 121, 122, 123)] == [
        *(None, 51, 60, 61),
        *(61, 62, 63, None),
    ]
    assert [offsets.source_of(offset) for offset in (50, 51, 60, 61, 63)] == [None, 100, 109, 120, 122]


def test_a_source_that_was_cut_back_maps_to_its_later_copy() -> None:
    again = term(index=4, epoch=4, start=Mark(0, 105, 70), runs=(Run(0, 105, 70, 7),), mark=Mark(3, 108, 73))
    again = Term.from_json({**again.to_json(), "previous": [7, 3], "previous_count": 12})
    offsets = OffsetMap([term(), again])
    assert [offsets.target_of(offset) for offset in (104, 105, 107, 108)] == [55, 70, 72, 73]


def test_rules_stop_or_accept_by_kind() -> None:
    source, target = TopicPartition("s", 0), TopicPartition("t", 0)
    foreign, lost = Finding(Fault.FOREIGN_WRITER, "x"), Finding(Fault.TARGET_LOST_RECORDS, "y")
    rules = Policy(on_foreign="continue")  # type: ignore[arg-type]
    (accepted,) = rules.judge(source, target, [foreign])
    assert (accepted.fault, str(accepted).endswith(": x")) == ("foreign_writer", True), "no advice on what is accepted"
    with pytest.raises(MirrorError, match=r"s-0 -> t-0: the target has lost records .*: y; with on_target_lost"):
        rules.judge(source, target, [foreign, lost])
    with pytest.raises(ConfigError, match="on_lost is 'ignore'; accepted are 'stop' and 'continue'"):
        Policy(on_lost="ignore")  # type: ignore[arg-type]


def test_a_rate_spreads_batches_over_time() -> None:
    throttle = Throttle(1000.0, {"slow": 100.0})
    throttle.spend("slow", 500, now=10.0)
    assert (throttle.ready_at("slow"), throttle.ready_at("other")) == (15.0, 10.5)
    throttle.spend("other", 500, now=11.0)
    assert throttle.ready_at("other") == 11.5
    with pytest.raises(ConfigError, match="the rate of slow must be bytes per second above 0"):
        Throttle(None, {"slow": 0.0})


def test_names_at_the_target() -> None:
    assert Rename("{source}.{topic}").apply("orders", link="edge") == "edge.orders"
    assert Rename("{source}.{topic}").is_result("edge.orders", link="edge")
    assert not Rename("{topic}").is_result("orders", link="edge")
    assert Rename("{topic}").apply("a" * 250, link="edge") is None
    for wrong in ("copy", "{topic} {source}", ""):
        with pytest.raises(ConfigError, match="the rename rule is"):
            Rename(wrong)
    for name in ("", "a/b", "x" * 101, "a#b", None):
        with pytest.raises(ConfigError, match="the name of a link"):
            check_link_name(name)


def test_topics_are_chosen_by_name_and_pattern() -> None:
    names = ["orders", "orders-eu", "clicks", "__consumer_offsets", "journal"]
    assert select(names, ["orders*", "clicks"], excluded={"journal"}) == ["clicks", "orders", "orders-eu"]
    assert select(names, ["*"], excluded={"journal"}) == ["clicks", "orders", "orders-eu"]
    with pytest.raises(InputError, match="no topic 'nowhere'"):
        select(names, ["nowhere"])
    own = ["heartbeats", "mm2-offsets.hub.internal", "hub.checkpoints.internal", "clicks", "clicks-test"]
    assert select(own, ["*"]) == ["clicks", "clicks-test"]
    assert left_out(own, ["*"]) == own[:3]
    assert select(own, ["*", "heartbeats"], exclude=["*-test"]) == ["clicks", "heartbeats"]
    assert left_out(own, ["*", "heartbeats"]) == own[1:3]


def test_a_copy_is_created_like_its_source_and_follows_its_settings() -> None:
    partitions = tuple(Partition(index=n, leader=1, leader_epoch=0, replicas=(1,), isr=(1,)) for n in range(3))
    source = TopicDescription("t", SOURCE, False, partitions)
    settings = {
        "retention.ms": Setting("retention.ms", "60000", SettingSource.TOPIC),
        "max.message.bytes": Setting("max.message.bytes", "2000000", SettingSource.DEFAULT),
        "segment.bytes": Setting("segment.bytes", "1000", SettingSource.TOPIC),
    }
    new = plan(source, None, name="copy", source_settings=settings, target_settings=None)
    assert (new.action, new.partitions) == ("create", 3)
    assert new.settings == {"compression.type": "producer", "retention.ms": "60000", "max.message.bytes": "2000000"}
    before, after = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
    limits = {
        before: Setting(before, "1000", SettingSource.FILE),
        after: Setting(after, "99", SettingSource.TOPIC),
    }
    taken = plan(source, None, name="copy", source_settings=limits, target_settings=None)
    assert taken.settings == {"compression.type": "producer", before: "1000", after: "99"}
    target = TopicDescription("copy", TARGET, False, partitions[:2])
    other = {after: Setting(after, "5"), before: Setting(before, "5")}
    assert plan(source, target, name="copy", source_settings=limits, target_settings=other).settings == {after: "99"}
    assert not plan(source, target, name="copy", source_settings=limits, target_settings={}).settings, "too old"
    same = {"retention.ms": Setting("retention.ms", "60000")}
    grown = plan(source, target, name="copy", source_settings=settings, target_settings=same)
    assert (grown.action, dict(grown.settings)) == ("grow", {})


@pytest.mark.parametrize(("slept", "suspended"), [(4000.0, 4000.0), (0.0, 4000.0), (4000.0, 0.0)])
def test_a_mirror_that_was_frozen_takes_over_again_before_it_sends_anything(slept: float, suspended: float) -> None:
    lane = Lane(TopicPartition("s", 0), TopicPartition("t", 0), first=0, stop=100)
    lane.taken_over(term(), Cursor(lane.source, 0), 10.0, 1000.0)
    assert not lane.is_outdated(11.0, 1001.0)
    assert lane.is_outdated(11.0 + slept, 1001.0 + suspended)


def test_a_source_with_very_many_gaps_is_journaled_in_small_entries() -> None:
    lane = Lane(TopicPartition("s", 0), TopicPartition("t", 0), first=0, stop=10_000)
    cursor = Cursor(lane.source, 0, 10_000)
    lane.taken_over(term(runs=(), mark=None, start=Mark(0, 0, 51)), cursor, 10.0, 1000.0)
    (new,) = encode(from_list([b"a"]), now_ms=1000)
    offsets = range(0, 4000, 2)
    batches = [Batch.parse(pack_header(restamp(new.header, base_offset=o)) + bytes(new.records)) for o in offsets]
    lane.add(Piece(cursor, batches, 0, 10_000, 4000, ResponseMemory(0)), Recoder())
    entries = []
    while lane.needs_journal:
        entries.append(lane.entry())
        lane.journaled(entries[-1])
        assert len(entries[-1].term.runs) <= 512
        assert all(batch.end <= entries[-1].number for batch in lane.queue if batch.end <= lane._allowed)
    assert [run.source for run in joined([entry.term for entry in entries]).runs] == list(offsets)
    assert len(entries) == 4
    first = lane.queue[0]
    lane.sent(first, 11.0, 1001.0)
    lane.accept(first, 54)  # three foreign records, when its run was journaled long ago
    lane.is_marked = False
    assert [run.source for run in lane.entry().term.runs] == list(offsets)[1533:]
    assert lane.entry().term.runs[0].target == 51 + 1533 + 3


def test_what_the_target_has_refused_as_too_large_is_not_tried_again_in_the_next_term() -> None:
    lane = Lane(TopicPartition("s", 0), TopicPartition("t", 0), first=0, stop=4)
    lane.accepts = Acceptance(max_bytes=1000)
    outbound = Outbound(header(), memoryview(b""), number=0, source=3, original=Mock(), reason=None)
    assert lane.verdict_on(outbound, ErrorCode.record_list_too_large) is Verdict.TAKE_OVER
    assert lane.most_bytes == outbound.size_bytes // 2


def test_a_lane_ends_at_its_stop_though_only_a_marker_lies_before_it() -> None:
    lane = Lane(TopicPartition("s", 0), TopicPartition("t", 0), first=0, stop=4)
    cursor = Cursor(lane.source, 0, 4)
    lane.taken_over(term(runs=(), mark=None, start=Mark(0, 0, 51)), cursor, 10.0, 1000.0)
    (new,) = encode(from_list([b"a", b"b", b"c"]), now_ms=1000)
    batches = [
        Batch.parse(pack_header(restamp(new.header, base_offset=offset)) + bytes(new.records)) for offset in (0, 4)
    ]
    lane.add(Piece(cursor, batches, 0, 4, 7, ResponseMemory(0)), Recoder())
    lane.journaled(lane.entry())
    outbound = lane.sendable(11.0)
    assert outbound is not None
    lane.sent(outbound, 11.0, 1001.0)
    lane.accept(outbound, 51)
    assert (lane.phase, lane.position, lane.counts.records) == (Phase.DONE, 4, 3)
