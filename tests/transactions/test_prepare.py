"""Any process that has its token can end a prepared transaction, once; its producer then continues."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cluster import LocalCluster
from ottla.errors import Fenced, InputError, TransactionFailed
from ottla.model import TopicPartition
from ottla.produce.coordinator import PreparedTransaction
from ottla.produce.transaction import end_transaction

from .conftest import NewProducer, NewTopic, fail, failing
from .reading import Log

pytestmark = pytest.mark.broker
PROGRAMS = Path(__file__).with_name("programs.py")


def test_another_process_commits_and_aborts(
    kafka: LocalCluster, log: Log, new_topic: NewTopic, new_producer: NewProducer, tid: str
) -> None:
    kept, dropped, group = new_topic(3), new_topic(3), f"group-{tid}"
    tokens: dict[str, PreparedTransaction] = {}
    producers = {"commit": new_producer(), "abort": new_producer(transactional_id=f"{tid}-other")}
    for decision, topic in (("commit", kept), ("abort", dropped)):
        with producers[decision].transaction() as tx:
            producers[decision].send_many(topic, [b"value"] * 50)
            tx.send_offsets(f"{group}-{decision}", {TopicPartition(topic, 0): 4})
            tokens[decision] = tx.prepare()
    assert log.visible(kept) == log.visible(dropped) == []
    decisions = [(token, decision == "commit") for decision, token in tokens.items()]
    program = [sys.executable, str(PROGRAMS), "end", kafka.bootstrap]
    subprocess.run(program, input=pickle.dumps(decisions * 2), check=True, timeout=60)
    assert log.committed(kept) == [b"value"] * 50
    assert log.committed(dropped) == []
    assert log.group_offsets(f"{group}-commit", kept, [0]) == [4]
    assert log.group_offsets(f"{group}-abort", dropped, [0]) == [-1001]
    for decision, topic in (("commit", kept), ("abort", dropped)):
        with producers[decision].transaction():
            producers[decision].send(topic, b"goes on")
        assert b"goes on" in log.committed(topic)


def test_a_transaction_outlives_the_process_that_prepared_it(
    kafka: LocalCluster, log: Log, topic: str, tid: str
) -> None:
    program = [sys.executable, str(PROGRAMS), "prepare", kafka.bootstrap, tid, topic]
    done = subprocess.run(program, check=True, timeout=60, stdout=subprocess.PIPE)
    token = pickle.loads(done.stdout)
    assert log.visible(topic) == []
    end_transaction(kafka.bootstrap, token, commit=True)
    assert log.committed(topic) == [b"prepared"]


@pytest.mark.parametrize("commit", [True, False])
def test_ending_twice_is_no_error_and_ending_the_other_way_is(
    kafka: LocalCluster, log: Log, topic: str, new_producer: NewProducer, commit: bool
) -> None:
    producer = new_producer()
    with producer.transaction() as tx:
        producer.send(topic, b"value")
        token = tx.prepare()
    for _ in range(2):
        end_transaction(kafka.bootstrap, token, commit=commit)
    with pytest.raises(TransactionFailed, match="ended already, the other way"):
        end_transaction(kafka.bootstrap, token, commit=not commit)
    assert log.committed(topic) == ([b"value"] if commit else [])


def test_a_used_token_cannot_end_the_next_transaction(
    kafka: LocalCluster, log: Log, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer()
    with producer.transaction() as tx:
        producer.send(topic, b"first")
        token = tx.prepare()
    end_transaction(kafka.bootstrap, token, commit=True)
    with producer.transaction() as tx:
        producer.send(topic, b"second").result(30)
        for commit in (True, False):
            with pytest.raises(Fenced, match="it was ended before and its producer began another one"):
                end_transaction(kafka.bootstrap, token, commit=commit)
        tx.abort()
    assert log.committed(topic) == [b"first"]


def test_nothing_continues_before_a_prepared_transaction_is_ended(
    kafka: LocalCluster, log: Log, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer()
    with failing(LookupError), producer.transaction() as tx:
        producer.send(topic, b"first")
        token = tx.prepare()
        with pytest.raises(TransactionFailed, match="is prepared"):
            producer.send(topic, b"too late")
        with pytest.raises(TransactionFailed, match="is prepared"):
            tx.send_offsets("group", {TopicPartition(topic, 0): 1})
        fail(LookupError())  # another process may have the token by now: raising does not abort
    for _ in range(2):
        with failing(TransactionFailed, "not ended yet"), producer.transaction():
            pass
    end_transaction(kafka.bootstrap, token, commit=True)
    with producer.transaction():
        producer.send(topic, b"second")
    producer.close()
    assert log.committed(topic) == [b"first", b"second"]


def test_closing_the_producer_leaves_a_prepared_transaction_open(
    kafka: LocalCluster, log: Log, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer()
    with producer.transaction() as tx:
        producer.send(topic, b"value")
        token = tx.prepare()
    producer.close()
    assert log.visible(topic) == []
    end_transaction(kafka.bootstrap, token, commit=True)
    assert log.committed(topic) == [b"value"]


def test_preparing_what_failed_aborts(log: Log, new_topic: NewTopic, new_producer: NewProducer) -> None:
    topic = new_topic(**{"max.message.bytes": "2000"})
    producer = new_producer()
    with failing(TransactionFailed, "over already.*MESSAGE_TOO_LARGE"), producer.transaction() as tx:
        producer.send(topic, b"innocent")
        producer.send(topic, b"x" * 5000)
        with pytest.raises(TransactionFailed, match="MESSAGE_TOO_LARGE"):
            tx.prepare()
        # A program that ignores the failure gets it at the end of the block.
    assert log.committed(topic) == []


def test_what_is_no_token_is_refused(kafka: LocalCluster) -> None:
    with pytest.raises(InputError, match=r"pass what tx\.prepare"):
        end_transaction(kafka.bootstrap, ("id", 1, 2), commit=True)  # type: ignore[arg-type]
    with pytest.raises(Fenced, match="producer id 4711, epoch 3") as caught:
        end_transaction(kafka.bootstrap, PreparedTransaction("never-heard-of", 4711, 3), commit=True)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), Fenced)
