"""What is served: metrics, Burrow's interface, the board that belongs to them. Made from snapshots, without sockets."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import pytest

from ottla.model import TopicPartition
from ottla.operations.lag import burrow, metrics
from ottla.operations.lag.evaluate import Evaluator
from ottla.operations.lag.values import GroupSample, GroupType, Snapshot

from .samples import TP, sample

ODD = 'a "group"\\ with\nmore'


def _snapshot(polls: int = 4) -> Snapshot:
    evaluator = Evaluator()
    fleet = GroupSample("billing", GroupType.FLEET, committed={TP: 100})
    for number in range(polls):
        snapshot = evaluator.observe(sample(30.0 * number, 50, 100 + number, is_owned=True, more=(fleet,)))
    return snapshot


def _text(snapshot: Snapshot, family: str = "both") -> str:
    return "".join(metrics.render(snapshot, cluster="prod", family=family)) + metrics.render_age(
        snapshot, cluster="prod", now=1000.0
    )


def _lines(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]


def test_family_a_has_the_names_and_labels_of_kafka_lag_exporter() -> None:
    text = _text(_snapshot(), "a")
    labels = (
        'cluster_name="prod",group="billing",topic="clicks",partition="0"'
        ',member_host="10.0.0.1",client_id="app",consumer_id="member-1"'
    )
    assert f"kafka_consumergroup_group_offset{{{labels}}} 50" in text
    assert f"kafka_consumergroup_group_lag{{{labels}}} 53" in text
    assert 'kafka_consumergroup_group_max_lag{cluster_name="prod",group="billing"} 53' in text
    assert 'kafka_consumergroup_group_topic_sum_lag{cluster_name="prod",group="billing",topic="clicks"} 53' in text
    assert 'kafka_partition_latest_offset{cluster_name="prod",topic="clicks",partition="0"} 103' in text
    assert 'kafka_partition_earliest_offset{cluster_name="prod",topic="clicks",partition="0"} 0' in text
    assert set(metrics.names("a")) >= {
        f"kafka_consumergroup_group_{name}"
        for name in ("offset", "lag", "lag_seconds", "max_lag", "max_lag_seconds", "sum_lag", "topic_sum_lag")
    } | {"kafka_consumergroup_poll_time_ms"}
    assert not _lines(text, "kafka_brokers")


def test_family_b_has_those_of_kafka_exporter() -> None:
    text = _text(_snapshot(), "b")
    assert "kafka_brokers 1" in text
    assert 'kafka_topic_partitions{topic="clicks"} 1' in text
    assert 'kafka_topic_partition_current_offset{topic="clicks",partition="0"} 103' in text
    assert 'kafka_consumergroup_lag{consumergroup="billing",topic="clicks",partition="0"} 53' in text
    assert 'kafka_consumergroup_lag_sum{consumergroup="billing",topic="clicks"} 53' in text
    assert not _lines(text, "kafka_consumergroup_group_lag")


def test_every_text_is_well_formed_and_no_series_is_there_twice() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    evaluator = Evaluator()
    others = tuple(GroupSample(ODD, kind, committed={TP: 3}) for kind in (GroupType.FLEET, GroupType.SPARK))
    text = _text(evaluator.observe(sample(0.0, 5, 10, name=ODD, more=others)))
    series = set()
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            key = (each.name, tuple(sorted(each.labels.items())))
            assert key not in series
            series.add(key)
            if "group" in each.labels:
                assert each.labels["group"] == ODD
    assert len(series) > 20


def test_what_is_unknown_has_no_sample_and_what_is_gone_no_series() -> None:
    evaluator = Evaluator()
    text = _text(evaluator.observe(sample(0.0, None, 10)))
    assert not _lines(text, "kafka_consumergroup_group_offset")
    assert not _lines(text, "kafka_consumergroup_group_lag")
    text = _text(evaluator.observe(sample(1.0, 5, None)))
    assert not _lines(text, "kafka_partition_latest_offset")
    assert not _lines(text, "kafka_consumergroup_group_lag")
    text = _text(evaluator.observe(sample(2.0, 5, 10, name="other")))
    assert 'group="billing"' not in text


def test_the_age_of_figures_grows_without_a_poll() -> None:
    snapshot = _snapshot(1)
    assert metrics.render_age(snapshot, cluster="x", now=75.0).endswith('{cluster_name="x"} 75.0\n')


def test_every_metric_that_the_board_asks_for_is_exported() -> None:
    board = json.loads((resources.files("ottla.operations.lag") / "board.json").read_text())
    exported = set(metrics.names("a"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [each["definition"] for each in board["templating"]["list"] if each["type"] == "query"]
    assert len(queries) > 15
    for query in queries:
        asked = set(re.findall(r"\b(?:kafka|ottla)_[a-z_]+", query))
        assert asked, query
        assert asked <= exported, query
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def _ask(path: str, snapshot: Snapshot | None = None) -> burrow.Answer:
    return burrow.answer(burrow.Asked(snapshot or _snapshot(), "prod", ("a:9092",), path, "host-1"))


def _content(path: str, snapshot: Snapshot | None = None) -> Any:
    found = _ask(path, snapshot)
    assert found.status == 200
    assert found.content["error"] is False
    assert found.content["request"] == {"url": path, "host": "host-1"}
    return found.content


def test_burrow_lists_what_there_is() -> None:
    assert _content("/v3/kafka")["clusters"] == ["prod"]
    assert _content("/v3/kafka/prod")["module"]["servers"] == ["a:9092"]
    assert _content("/v3/kafka/prod/consumer")["consumers"] == ["billing"]
    assert _content("/v3/kafka/prod/topic")["topics"] == ["clicks"]
    assert _content("/v3/kafka/prod/topic/clicks")["offsets"] == [103]
    assert _content("/v3/kafka/prod/topic/clicks/consumers")["consumers"] == ["billing"]


def test_burrow_shows_a_group_with_its_field_names() -> None:
    detail = _content("/v3/kafka/prod/consumer/billing")
    (partition,) = detail["topics"]["clicks"]
    assert (partition["owner"], partition["client_id"], partition["current-lag"]) == ("10.0.0.1", "app", 53)
    assert partition["offsets"][0] == {"offset": 50, "timestamp": 0, "observedAt": 0, "lag": 50}
    status = _content("/v3/kafka/prod/consumer/billing/lag")["status"]
    assert (status["cluster"], status["group"], status["status"], status["totallag"]) == ("prod", "billing", "ERR", 53)
    assert (status["partition_count"], status["complete"], status["maxlag"]["status"]) == (1, 0.0, "STALL")
    (row,) = status["partitions"]
    assert (row["topic"], row["partition"], row["current_lag"], row["complete"]) == ("clicks", 0, 53, 0.4)
    assert (row["start"]["offset"], row["end"]["timestamp"]) == (50, 90_000)
    well = Evaluator().observe(sample(0.0, 10, 10))
    assert _content("/v3/kafka/prod/consumer/billing/status", well)["status"]["partitions"] == []
    assert len(_content("/v3/kafka/prod/consumer/billing/lag", well)["status"]["partitions"]) == 1


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v3/kafka/other", "cluster not found"),
        ("/v3/kafka/prod/consumer/other", "cluster or consumer not found"),
        ("/v3/kafka/prod/topic/other", "cluster or topic not found"),
        ("/v3/kafka/prod/nothing", "invalid request type"),
        ("/v3/nothing", "invalid request type"),
    ],
)
def test_what_burrow_does_not_have_is_not_found(path: str, message: str) -> None:
    found = _ask(path)
    assert (found.status, found.content["error"], found.content["message"]) == (404, True, message)


def test_burrow_says_of_an_unknown_group_that_its_status_is_notfound() -> None:
    found = _ask("/v3/kafka/prod/consumer/other/status")
    assert (found.status, found.content["error"], found.content["status"]["status"]) == (404, False, "NOTFOUND")


def test_names_with_odd_characters_are_found() -> None:
    snapshot = Evaluator().observe(sample(0.0, 10, 10, name="a b/c"))
    assert _content("/v3/kafka/prod/consumer/a%20b%2Fc/lag", snapshot)["status"]["group"] == "a b/c"
    assert TopicPartition("clicks", 0) in snapshot.logs
