"""What commands show on a terminal: views are functions of values, so that each screen is tested without one."""

from __future__ import annotations

from ottla.admin import Setting, SettingSource
from ottla.cli.mirror.view import Speed, progress_text
from ottla.cli.output.styles import visible
from ottla.cli.topics.view import settings_text
from ottla.cli.work.group_status import GroupRates, GroupStatus, PartitionStatus
from ottla.cli.work.view import status_text
from ottla.engines.fleet.units import Counts, PartitionState
from ottla.jobs.mirror_runner import LinkProgress
from ottla.model import TopicPartition

CLICKS, USERS = TopicPartition("clicks", 0), TopicPartition("users", 0)


def _status(*, lag: int, failed: int = 0, history: tuple[float, ...] = (0.0, 500.0, 1000.0)) -> GroupStatus:
    return GroupStatus(
        group="shop",
        store="sqlite:///shop.db",
        planner="node-1",
        partitions=(
            PartitionStatus(PartitionState(CLICKS, 10_000, 9_000, 1, 1, failed), 9_000 + lag),
            PartitionStatus(PartitionState(USERS, 1_000, 1_000, 0, 0, 0), 1_000),
        ),
        in_flight=(),
        nodes=(),
        topics={"clicks": "", "users": ""},
        counts=Counts()._replace(done=20, offsets=10_000),
        halted={},
        rates=GroupRates(1.0, 1000.0, 0.0),
        history=history,
    )


def test_a_watched_group_shows_its_trend_its_share_and_when_it_will_have_caught_up() -> None:
    lines = visible(status_text(_status(lag=10_000), width=100)).splitlines()
    assert "  now 1.0 units/s, 1,000 offsets/s, 0.0 failed attempts/s  ▁▅█" in lines
    assert f"  {'━' * 12}{'─' * 12}  50%  0:20 left" in lines


def test_a_group_that_has_caught_up_waits_for_nothing() -> None:
    assert f"  {'━' * 24} 100%" in visible(status_text(_status(lag=0), width=100)).splitlines()


def test_red_is_what_failed_and_faint_is_what_needs_no_look() -> None:
    quiet, loud = (status_text(_status(lag=1_000, failed=failed), width=100) for failed in (0, 3))
    assert "\x1b[31m" not in quiet
    assert "\x1b[31m3\x1b[0m" in loud
    [users] = [line for line in loud.splitlines() if "users" in line]
    assert users.startswith("  \x1b[2musers\x1b[0m")


def test_without_a_terminal_there_is_neither_style_nor_picture() -> None:
    text = status_text(_status(lag=10_000, failed=1), width=None)
    assert "\x1b" not in text
    assert not set("━─▁█") & set(text)


def _setting(name: str, value: str, default: str) -> Setting:
    return Setting(name=name, value=value, source=SettingSource.TOPIC, default=default)


def test_only_settings_that_differ_are_in_the_table() -> None:
    settings = [_setting("cleanup.policy", "delete", "delete"), _setting("retention.ms", "3600000", "604800000")]
    lines = settings_text({setting.name: setting for setting in settings}, width=None).splitlines()
    assert lines[0].split() == ["setting", "value", "default", "set", "by"]
    assert lines[1].split() == ["retention.ms", "3600000", "(1h)", "604800000", "(7d)", "this", "topic"]
    assert lines[2:] == ["  set to what is the default anyway: cleanup.policy=delete"]


def _link(records: int, lag: int | None) -> LinkProgress:
    return LinkProgress("oslo", "running", records, 0, 10, 10, lag)


def test_a_mirror_with_an_end_has_a_bar_and_one_that_follows_has_its_trend() -> None:
    speed = Speed()
    for second in range(5):
        speed.observe([_link(second * 100, None)], second)
    ending = visible(progress_text([_link(400, 400)], speed, follow=False))
    assert ending == f"{'━' * 12}{'─' * 12}  50%  400 records mirrored, 0.0 MB/s, lag 400, 100 % passed on, 0:04 left"
    following = visible(progress_text([_link(400, 400)], speed, follow=True))
    assert following.startswith("████  400 records mirrored")
    assert "left" not in following
