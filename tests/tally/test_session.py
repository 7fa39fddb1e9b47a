"""What a running client counted: right while it runs, and known to be unknown where it was killed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.audit.counts import count_tier
from ottla.tally import session as sessions
from ottla.tally.session import Session
from ottla.tally.settings import Audit
from ottla.tally.values import SessionPage, Slice, as_hex

BUCKET = 600
NOW = 1_767_225_600.0
AUDIT = Audit(tier="edge", bucket_seconds=BUCKET, publish_every=10.0, service="shop", host="h")


def piece(bucket: int, count: int = 1, total: int = 1) -> Slice:
    start = int(NOW) + bucket * BUCKET
    return Slice(
        start=start, count=count, bytes=count, fingerprint=as_hex(total), first=float(start), last=float(start)
    )


def publish(session: Session, now: float, *, is_last: bool = False) -> list[SessionPage]:
    pages = [page for pages in session.pages(now, is_last=is_last) for page in pages]
    for page in pages:
        session.published(page)
    return pages


def test_records_wait_for_the_first_page_of_their_topic() -> None:
    session = Session(AUDIT, id="s", role="producer")
    assert not session.expect("clicks", [piece(0)])
    assert session.needs_publication
    publish(session, NOW)
    assert session.is_announced("clicks", [piece(0)])
    assert session.expect("clicks", [piece(0), piece(1)])
    assert not session.expect("users", [piece(0)])


def test_records_far_from_the_present_wait_for_a_page_that_covers_them() -> None:
    session = Session(AUDIT, id="s", role="producer")
    session.expect("clicks", [piece(0)])
    publish(session, NOW)
    assert not session.expect("clicks", [piece(-500)])
    assert not session.expect("clicks", [piece(500)])
    (page,) = publish(session, NOW)
    assert session.is_announced("clicks", [piece(-500), piece(500)])
    assert page.floor == piece(-500).start
    assert page.ceiling == piece(500).start


def test_while_a_page_is_being_published_only_what_both_pages_cover_may_go() -> None:
    session = Session(AUDIT, id="s", role="producer")
    session.expect("clicks", [piece(-50)])
    publish(session, NOW)
    assert session.is_announced("clicks", [piece(-50)])
    session.count("clicks", 0, [piece(-50)])
    ((page,),) = session.pages(NOW + 1)
    assert page.floor > piece(-50).start
    # The page on its way says that nothing more comes for this bucket. It may be the last one.
    assert not session.expect("clicks", [piece(-50)])
    assert session.expect("clicks", [piece(0)])
    session.published(page)
    assert not session.is_announced("clicks", [piece(-50)])
    publish(session, NOW + 2)
    assert session.is_announced("clicks", [piece(-50)])


def test_a_page_replaces_the_one_before_it() -> None:
    session = Session(AUDIT, id="s", role="producer")
    for number in range(3):
        session.expect("clicks", [piece(0, 2, 5)])
        session.count("clicks", number % 2, [piece(0, 2, 5)])
        (page,) = publish(session, NOW + number)
    assert page.page == 0
    assert {(part.partition, part.count, part.total) for part in page.buckets} == {(0, 4, 10), (1, 2, 5)}


def test_a_full_page_is_closed_only_after_the_next_one_is_there() -> None:
    before, sessions.MOST_ENTRIES = sessions.MOST_ENTRIES, 2
    try:
        session = Session(AUDIT, id="s", role="producer")
        for number in range(3):
            session.expect("clicks", [piece(number)])
            session.count("clicks", 0, [piece(number)])
        rounds = session.pages(NOW)
        assert [[(page.page, page.state) for page in pages] for pages in rounds] == [[(1, "open")], [(0, "full")]]
        # Nothing of this was published: it comes again.
        rounds = session.pages(NOW)
        assert [[(page.page, page.state) for page in pages] for pages in rounds] == [[(1, "open")], [(0, "full")]]
        assert sum(part.count for pages in rounds for page in pages for part in page.buckets) == 3
    finally:
        sessions.MOST_ENTRIES = before


def test_a_closed_session_is_final_and_a_dead_one_is_in_doubt() -> None:
    session = Session(AUDIT, id="s", role="producer")
    session.expect("clicks", [piece(0, 3)])
    session.count("clicks", 0, [piece(0, 3)])
    open_pages = publish(session, NOW)
    closed = publish(session, NOW + 1, is_last=True)
    count = count_tier("edge", "clicks", [*open_pages, *closed], now=NOW + 10_000)
    assert count.doubt(int(NOW)) is None
    assert count.by_bucket[int(NOW)].count == 3
    alive = count_tier("edge", "clicks", open_pages, now=NOW + 20)
    assert alive.doubt(int(NOW)) is None
    assert alive.horizon == NOW
    dead = count_tier("edge", "clicks", open_pages, now=NOW + 10_000)
    assert dead.doubt(int(NOW)) is not None
    assert dead.doubt(int(NOW) - 2 * BUCKET) is None
    assert dead.doubt(int(NOW) + 5 * BUCKET) is None


@given(st.data())
def test_killed_anywhere_a_session_is_right_or_says_that_it_is_not(data: st.DataObject) -> None:
    """Batches of any bucket are sent when they may, answered or not, pages are published or get lost; then a kill."""
    session = Session(AUDIT, id="s", role="producer")
    audit_topic: dict[int, SessionPage] = {}
    waiting: list[Slice] = []
    sent: list[Slice] = []
    arrived: dict[int, int] = {}
    now = NOW
    for _ in range(data.draw(st.integers(1, 30))):
        now += data.draw(st.sampled_from([0.0, 1.0, 30.0, 700.0]))
        step = data.draw(st.sampled_from(["send", "send", "send", "answer", "answer", "fail", "publish", "lose"]))
        if step == "send":
            bucket = data.draw(st.sampled_from([0, 0, 0, -1, 1, -50, 50]))
            start = int(now // BUCKET * BUCKET) + bucket * BUCKET
            part = Slice(start=start, count=1, bytes=1, fingerprint=as_hex(1), first=float(start), last=float(start))
            session.expect("clicks", [part])
            waiting.append(part)
        elif step in ("answer", "fail") and sent:
            part = sent.pop(data.draw(st.integers(0, len(sent) - 1)))
            if step == "answer":
                session.count("clicks", 0, [part])
            else:
                arrived[part.start] -= 1
                session.drop("clicks", [part])
        elif step in ("publish", "lose") and session.topics:
            for pages in session.pages(now):
                if step == "lose":
                    break
                for page in pages:
                    audit_topic[page.page] = page
                    session.published(page)
        # A batch that may go reaches the broker at once, whether its answer comes back or not.
        going = [part for part in waiting if session.is_announced("clicks", [part])]
        for part in going:
            waiting.remove(part)
            sent.append(part)
            arrived[part.start] = arrived.get(part.start, 0) + 1
    count = count_tier("edge", "clicks", audit_topic.values(), now=now + 100_000)
    for bucket, number in arrived.items():
        counted = count.by_bucket[bucket].count if bucket in count.by_bucket else 0
        assert counted == number or count.doubt(bucket) is not None or not audit_topic
    assert audit_topic or not arrived
