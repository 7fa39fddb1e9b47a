"""The pytest plugin as a user gets it: found by pytest itself, cheap to load, with both fixtures."""

from __future__ import annotations

import subprocess
import sys

import confluent_kafka
import pytest

from ottla.cluster import LocalCluster
from ottla.testing import FakeKafka

pytest_plugins = ["pytester"]

HEAVY = ["confluent_kafka", "kio", "numba", "numpy", "psutil", "pyarrow", "ottla.cluster", "ottla.wire"]


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    program = f"import sys, ottla.testing.plugin; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_fixtures_are_there_without_any_setting(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--fixtures", "-q")
    result.stdout.re_match_lines(
        [r"fake_kafka -- .*plugin\.py.*", r"kafka_cluster \[session scope\] -- .*plugin\.py.*"]
    )


def test_every_test_gets_a_fake_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import confluent_kafka, pytest

        @pytest.mark.parametrize("value", [b"one", b"two"])
        def test_sends(fake_kafka, value):
            assert fake_kafka.topics == {}
            producer = confluent_kafka.Producer({"bootstrap.servers": fake_kafka.bootstrap})
            producer.produce("t", value)
            assert producer.flush(10) == 0
            assert [record.value for record in fake_kafka.records("t", 0)] == [value]
        """
    )
    pytester.runpytest_inprocess("-q").assert_outcomes(passed=2)


def test_without_java_the_cluster_fixture_skips_and_says_what_to_install(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("def test_needs_brokers(kafka_cluster): pass")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(pytester.path))
    result = pytester.runpytest_inprocess("-q", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*no suitable Java found*Install it*"])


def test_the_public_names_are_what_they_say() -> None:
    import ottla.testing

    assert [getattr(ottla.testing, name).__name__ for name in ottla.testing.__all__] == ottla.testing.__all__
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = ottla.testing.Nothing  # type: ignore[attr-defined]


@pytest.mark.broker
def test_the_cluster_fixture_has_three_real_brokers(kafka_cluster: LocalCluster, fake_kafka: FakeKafka) -> None:
    clusters = [confluent_kafka.Producer({"bootstrap.servers": each.bootstrap}) for each in (kafka_cluster, fake_kafka)]
    assert [len(producer.list_topics(timeout=30).brokers) for producer in clusters] == [3, 1]
