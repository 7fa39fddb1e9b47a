"""What the whole suite shares: real brokers, started once and quickly, and the order in which two workers do it all."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from itertools import zip_longest
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from tests import quick_java
from tests.brokers import BREAKING, hasty_broker, mend, own_brokers, remove_shared, shared_brokers
from tests.lean import GENERATING, lean_children

from ottla.cluster import LocalCluster
from ottla.cluster.process import ProcessId
from ottla.errors import OttlaError

if TYPE_CHECKING:
    from xdist.remote import Producer  # type: ignore[import-untyped]
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# How long something takes is for benchmarks to say: tests also run where others use the processors.
settings.register_profile(
    "ottla",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("OTTLA_EXAMPLES", "50")),  # far more in `make soak`
)
settings.load_profile("ottla")

# The longest, which would be the last to end if they were not the first to begin.
_LONGEST = (
    *("docs/test_pages.py", "spark/test_archive.py", "spooling/test_doubts.py", "spark/test_archive_kills.py"),
    *("demo/", "fuzz/", "mirror/test_mirror_real.py", "operations/moves/test_real.py"),
    *("consume/test_consumer_groups.py", "cli/test_consume_process.py", "produce/producer/test_lives.py"),
)
# Files that keep processors busy for long, and files that wait for brokers for long: they come next, in turns.
_BUSY = (
    *("spark/", "jobs/", "lake/", "demo/", "fuzz/", "wire/test_kernel_cache", "engines/"),
    *("package/", "website/", "examples/"),
)
_WAITING = (
    *("spooling/", "transactions/", "faults/", "consume/", "cluster/", "fetch/", "cli/", "interop/"),
    *("topic_histories/", "mirror/", "operations/", "gateway/", "testing/", "frame/", "net/test_real", "admin/"),
    "produce/",
)
_ONE_SESSION = (
    *(
        "archive",
        "audit",
        "examples",
        "matrix",
        "mirror",
        "reuse",
        "rollup",
        "session",
        "sink",
        "source",
        "source_streaming",
        "topic_histories",
    ),
    "work_report",
)
_TO_BREAK = "brokers to break"
# Files for one worker, because they share something that is dear to start. Any other file has one worker, too: pages
# share brokers and ports because all of their tests are in one file.
_TOGETHER = {
    **dict.fromkeys([*BREAKING, "tests/spooling/test_outage.py"], _TO_BREAK),
    **{f"tests/spark/test_{name}.py": "a Spark session" for name in _ONE_SESSION},
    "tests/fuzz/test_fuzz_wire.py": "kernels that check bounds",
    "tests/wire/test_kernels.py": "kernels that check bounds",
    "tests/gateway/test_parser_fuzz.py": "kernels that check bounds",
    "tests/produce/test_route.py": "kernels that check bounds",
}


# Tests that take long and say little more than shorter ones beside them: `make soak` runs them.
_ONLY_IN_SOAKS = (
    "fuzz/test_fuzz_wire.py::test_a_planted_read_of_one_byte_too_far_dies_at_the_wall",
    "consume/test_consumer_groups.py::test_a_killed_member_loses_nothing_and_repeats_only_its_own[eager]",
    "fuzz/test_fuzz_wire.py::test_the_long_run_ends_by_itself_and_says_that_it_found_nothing",
    "spark/test_archive_kills.py::",
    "spark/test_reuse.py::test_every_use_of_a_frame_has_the_answer_of_the_connector",
    "spark/test_matrix.py::test_a_batch_has_the_rows_of_the_connector[everything of several topics]",
    "spark/test_matrix.py::test_a_stream_has_the_rows_and_the_batches_of_the_connector[in portions of transactions]",
    "operations/moves/test_real.py::test_a_broker_that_goes_down_does_not_hold_up_the_rest",
    "spooling/test_doubts.py::test_twenty_written_batches_that_look_unsent_are_not_written_again",
    "fetch/test_memory.py::test_a_large_topic_is_read_in_bounded_memory[300000-1000-none]",
    "fetch/test_broken_brokers.py::test_a_log_that_turned_back_is_reported",
    "engines/fleet/nodes/test_fleet_group.py::test_a_partition_without_leader_begins_later_where_its_topic_began",
    "consume/test_consumer_deaths.py::test_the_death_of_a_coordinator_and_leader_is_survived_without_loss_or_repetition",
    "audit/test_tally.py::test_killed_at_random_moments_the_counts_are_right",
    "docs/test_pages.py::test_everything_on_a_page_works[docs/guides/from-spark-connector.md]",
    "docs/test_pages.py::test_everything_on_a_page_works[docs/rollup.md]",
    "jobs/test_replay.py::test_ctrl_c_ends_after_a_chunk_and_the_next_run_goes_on",
    "spark/test_matrix.py::test_a_stream_has_the_rows_and_the_batches_of_the_connector[in portions]",
    "spark/test_matrix.py::test_a_stream_has_the_rows_and_the_batches_of_the_connector[from a time on]",
    "spark/test_rollup.py::test_in_update_mode_a_window_is_written_whenever_it_changes",
    "spark/test_sink.py::test_what_is_wrong_is_said_before_anything_is_written",
    "spark/test_sink.py::test_an_at_least_once_write_needs_no_transaction",
    "spark/test_source_streaming.py::test_a_batch_waits_for_enough_records_or_long_enough",
    "spark/test_source_streaming.py::test_portions_by_bytes",
    "spark/test_source_streaming.py::test_a_query_from_the_end_on_remembers_where_that_was",
    "consume/test_membership_real.py::test_the_coordinator_is_killed_and_every_group_goes_on",
    "consume/test_consumer_groups.py::test_consume_transform_produce_is_exactly_once_across_kills",
    "fetch/test_memory.py::test_a_large_topic_is_read_in_bounded_memory[2000000-100-zstd]",
    "fetch/test_broken_brokers.py::test_an_undisturbed_read_is_exact",
    "net/test_real_brokers.py::test_a_killed_broker_does_not_stop_metadata_and_its_partitions_move",
    "cluster/test_commands.py::test_stale_state_of_a_killed_up_is_reported_cleaned_and_replaced_by_the_next_one",
    "spooling/test_outage.py::test_two_hundred_megabytes_wait_on_disk_and_not_in_memory_and_are_replayed_in_order",
    "spooling/test_kills.py::test_thirty_kills_lose_nothing_that_was_persisted_and_double_nothing",
    "cli/test_topics.py::test_a_broker_that_is_away_is_said_and_spoils_nothing_else",
    "cli/test_work_process.py::test_processes_end_by_themselves_and_errors_of_theirs_are_reported",
    "cli/test_consume_process.py::test_a_million_records_come_out_as_they_went_in",
    "cli/test_produce_process.py::test_a_million_lines_arrive_once_and_in_order_per_key",
    "engines/fleet/test_fleet_fire.py::test_nothing_is_lost_and_nothing_is_repeated_without_a_reason[ordered]",
    "frame/test_bench_scale.py::",
    "spark/test_topic_histories.py::test_a_stream_follows_a_real_topic[False]",
    "spark/test_topic_histories.py::test_a_dataframe_has_what_is_there_after_every_change[0-False]",
    "spark/test_sink.py::test_a_session_wide_checkpoint_location_is_enough",
    "cluster/test_commands.py::test_an_up_that_is_interrupted_stops_what_it_started[15]",
    "frame/test_bench_start.py::",
    "frame/test_checks.py::test_the_source_and_the_documents_pass",
    "engines/fleet/test_fleet_fire.py::test_nothing_is_lost_and_nothing_is_repeated_without_a_reason[any order]",
    "docs/test_pages.py::test_everything_on_a_page_works[README.md]",
    "faults/test_brokers.py::test_with_all_brokers_killed_records_wait_for_them_or_end_by_their_deadline",
)


_BREAKS_NEXT = pytest.StashKey[bool]()
"""Whether the next test may need the brokers to break."""


def pytest_configure() -> None:
    """Ctrl-C works in tests and in the programs they start, also where the suite itself runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The profiles of who runs the suite are none of its own.
    os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
    for name in ("OTTLA_CONFIG", "OTTLA_PROFILE"):
        os.environ.pop(name, None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first, a busy file beside a waiting one: workers share the processors well, and end together."""
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(_ONLY_IN_SOAKS):
            item.add_marker(pytest.mark.long)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.java)
    files = list(dict.fromkeys(_file(item) for item in items))
    busy, waiting = _in_order(files, _BUSY), _in_order(files, _WAITING)
    turns = [file for pair in zip_longest(busy, waiting) for file in pair if file is not None]
    order = dict.fromkeys([*_in_order(files, _LONGEST), *turns, *files])
    place = {file: at for at, file in enumerate(order)}
    items.sort(key=lambda item: place[_file(item)])


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0].removeprefix("tests/")


def _in_order(files: list[str], starts: tuple[str, ...]) -> list[str]:
    return [file for start in starts for file in files if file.startswith(start)]


def pytest_sessionstart(session: pytest.Session) -> None:
    """While workers collect tests, the process that started them makes what brokers start quickly with."""
    has_workers = session.config.pluginmanager.hasplugin("dsession") and session.config.getvalue("dist") == "loadfile"
    if has_workers and "not broker" not in session.config.getoption("markexpr"):
        threading.Thread(target=_prepare_brokers, args=(session.config,)).start()


def _prepare_brokers(config: pytest.Config) -> None:
    assert config.cache is not None
    # What goes wrong here goes wrong in the workers, too, and they tell it.
    with suppress(OttlaError, OSError, subprocess.SubprocessError):
        quick_java.hurry(config.cache.mkdir("kafka-classes"))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """In a new checkout one worker collects before the others, which then find all tests compiled."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    assert session.config.cache is not None
    folder = session.config.cache.mkdir("collected")
    stamp = folder / "once"
    with ExitStack() as alone:
        if not stamp.exists():
            alone.enter_context(FileLock(folder / "lock"))
        if stamp.exists():
            alone.close()
        result = yield
        stamp.touch()
    return result


def pytest_collection_finish(session: pytest.Session) -> None:
    """Where brokers will be started, they start quickly. Tests that collect garbage do not look through all others."""
    gc.collect()
    gc.freeze()
    # Sessions of Spark live for seconds, too; this reaches those of child programs.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData")
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData")
    needs_brokers = any(item.get_closest_marker("broker") for item in session.items)
    if needs_brokers and not session.config.option.collectonly:
        assert session.config.cache is not None
        quick_java.hurry(session.config.cache.mkdir("kafka-classes"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """With `--dist loadfile`: each file goes to one worker, and so do files that share a broker."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByBroker(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return _TOGETHER.get(file, file)

    return ByBroker(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """The process that started the workers takes their brokers down."""
    if session.config.pluginmanager.hasplugin("dsession"):
        remove_shared(session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Brokers that nobody will break next need not go on: three that are idle take a tenth of a processor."""
    item.config.stash[_BREAKS_NEXT] = nextitem is not None and _TOGETHER.get(f"tests/{_file(nextitem)}") == _TO_BREAK


@pytest.fixture(scope="module", autouse=True)
def _lean_programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if GENERATING.intersection(request.path.parts):
        yield
        return
    with lean_children(tmp_path_factory.mktemp("lean")):
        yield


@pytest.fixture(scope="session")
def _shared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with shared_brokers(tmp_path_factory.getbasetemp()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker that gives members of groups and transactions up soon; all workers share it."""
    with hasty_broker(tmp_path_factory.getbasetemp()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _own_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with own_brokers(tmp_path_factory.getbasetemp()) as cluster:
        yield cluster


@pytest.fixture
def brokers_to_break(_own_brokers: LocalCluster) -> LocalCluster:
    """Three of this worker's own, for tests that kill, stop or freeze brokers and mend them."""
    return _running(_own_brokers)


def _running(cluster: LocalCluster) -> LocalCluster:
    if not cluster.status().up:
        cluster._up(owner=ProcessId.own())
    return cluster


@pytest.fixture(scope="module")
def kafka(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Three real brokers with plaintext and secure listeners, which all workers share.

    Topics, groups and transactional ids have names that no other file uses. Files that break brokers have others.
    """
    if request.node.nodeid not in BREAKING:
        yield request.getfixturevalue("_shared_brokers")
        return
    cluster = _running(request.getfixturevalue("_own_brokers"))
    yield cluster
    if not request.config.stash[_BREAKS_NEXT]:
        cluster.down()


@pytest.fixture(autouse=True)
def _whole_again(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails between breaking brokers and mending them fails alone."""
    yield
    if request.path.relative_to(request.config.rootpath).as_posix() in BREAKING and "kafka" in request.fixturenames:
        mend(request.getfixturevalue("kafka"))


@pytest.fixture
def hasty_about_unknown_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that no broker knows is given up soon; a program waits for three seconds, as it may be a new one."""
    monkeypatch.setattr("ottla.net.attempts.UNKNOWN_TOPIC_SECONDS", 0.3)
    monkeypatch.setattr("ottla.produce.topics._UNKNOWN_PATIENCE", 0.3)


@pytest.fixture
def quick_brokers_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that the test starts have quick brokers, too; their JVMs say so on standard error."""
    for name, value in quick_java.variables().items():
        monkeypatch.setenv(name, value)
