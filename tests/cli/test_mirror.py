"""`ottla mirror` on real brokers: one cluster is both sides, under other names."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.interop.clients import confluent_write
from tests.interop.samples import UNUSUAL
from tests.mirror.copies import assert_equal, link_of, new_topic, seen, tp
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cli.mirror.view import status_text
from ottla.cluster import LocalCluster
from ottla.jobs.audit_notes import read_notes
from ottla.jobs.brokers import Brokers
from ottla.jobs.mirror_audit import LinkAudit
from ottla.jobs.mirror_runner import LinkRun, run_links
from ottla.jobs.mirror_status import Lag, LinkStatus, PartitionStatus, ProcessNote
from ottla.jobs.mirrors import Mirroring, mirror
from ottla.model import TopicPartition
from ottla.tally.values import RangeTally
from ottla.testing import FakeKafka

from .commands import SECONDS, program, run

JOURNAL = ("--journal", "mirror-cli-journal")
RENAME = ("--rename", "copy.{topic}", "--replicas", "1")


def _mirror(kafka: LocalCluster, topic: str, *options: str, command: tuple[str, ...] = ("mirror",)) -> Result:
    sides = ("--from", kafka.bootstrap, "--to", kafka.bootstrap)
    return run(*command, topic, *sides, "--name", f"cli-{topic}", *RENAME, *JOURNAL, *options)


def _status(kafka: LocalCluster, topic: str, *options: str) -> Any:
    name = ("--name", f"cli-{topic}")
    result = run("mirror", "status", "--to", kafka.bootstrap, *name, *JOURNAL, "--json", *options)
    assert result.exit_code == 0, result.stderr
    (link,) = json.loads(result.stdout)
    return link


@pytest.mark.broker
def test_a_topic_is_mirrored_and_a_second_run_finds_nothing_new(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "cli", partitions=2)
    confluent_write(kafka.bootstrap, tp(topic), "zstd", UNUSUAL)
    done = _mirror(kafka, topic)
    assert done.exit_code == 0, done.stderr
    pattern = (
        rf"link cli-{topic}: {len(UNUSUAL)} records \(.*B\) of 2 partitions mirrored in .* s; all batches passed on"
    )
    assert re.match(pattern, done.stdout)
    assert assert_equal(kafka.bootstrap, topic, partitions=2) == len(UNUSUAL)
    again = _mirror(kafka, topic)
    assert again.stdout == f"link cli-{topic}: nothing new in 2 partitions\n"
    row = json.loads(_mirror(kafka, topic, "--json").stdout)
    assert (row["link"], row["records"], row["error"]) == (f"cli-{topic}", 0, None)
    assert [partition["stop"] for partition in row["partitions"]] == [len(UNUSUAL), 0]


@pytest.mark.broker
def test_a_pattern_that_matches_nothing_is_a_warning(kafka: LocalCluster) -> None:
    sides = ("--from", kafka.bootstrap, "--to", kafka.bootstrap)
    done = run("mirror", ".*", *sides, "--name", "expression", *RENAME, *JOURNAL)
    assert (done.exit_code, done.stdout) == (0, "link expression: nothing new in 0 partitions\n")
    text = "no topic at the source matches .*; '*' alone stands for any text, '.' for itself"
    assert done.stderr == f"warning: link expression: {text}\n"


@pytest.mark.broker
def test_a_topic_with_the_name_of_a_command_needs_the_long_form(kafka: LocalCluster) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("status", replicas=1)
        try:
            confluent_write(kafka.bootstrap, tp("status"), "none", UNUSUAL[:3])
            short = _mirror(kafka, "status")
            assert short.exit_code == 2
            assert "no such option --rename" in short.stderr
            long = _mirror(kafka, "status", command=("mirror", "run"))
            assert (long.exit_code, len(seen(kafka.bootstrap, "copy.status"))) == (0, 3)
        finally:
            admin.delete_topics("status")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["clicks"], "--from HOST:PORT,... is missing"),
        (["clicks", "--from", "a:1"], "--to HOST:PORT,... is missing"),
        (["--from", "a:1", "--to", "b:1"], "TOPIC is missing"),
        (["clicks", "--from", "a b", "--to", "b:1"], "--from: bootstrap address 'a b' is not HOST:PORT"),
        (["cl icks", "--from", "a:1", "--to", "b:1"], "TOPIC"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--name", "a/b"], "the name of a link is 'a/b'"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--rename", "x"], "the rename rule is 'x'"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--rate", "5"], "--rate: '5' is not a rate: write it with a unit"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--name", ""], "the name of a link is ''"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--rename", ""], "the rename rule is ''"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--start", "group:x"], "--start: 'group:x' cannot be used here"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--prometheus", "x"], "--prometheus: 'x' is not a port"),
        (["clicks", "--link", "x"], "--link needs --config"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--master", "x"], "--master needs --engine spark"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--engine", "spark", "--groups", "g"], "does not translate groups"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--engine", "fleet", "--groups", "g"], "does not translate groups"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--engine", "fleet", "--take-over"], "need --engine local"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--store", "memory://"], "--store needs --engine fleet"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--audit-bootstrap", "c:1"], "needs --audit-tier"),
        (["clicks", "--from", "a:1", "--to", "b:1", "--audit-tier", "a b"], "tier 'a b'"),
        (["ottla-audit", "--from", "a:1", "--to", "b:1", "--audit-tier", "hub"], "its own audit topic"),
        (["offset", "clicks:x", "5", "--to", "a:1"], "'clicks:x' is not TOPIC or TOPIC:PARTITION"),
        (["offset", "clicks", "5"], "--to HOST:PORT,... is missing"),
        (["status"], "--to HOST:PORT,... is missing"),
        (["groups", "--to", "a:1"], "GROUP"),
    ],
)
def test_wrong_uses_are_one_line(arguments: list[str], message: str) -> None:
    result = run("mirror", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.startswith("error: ")


@pytest.mark.broker
def test_status_and_offset_know_how_far_a_link_is(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "cli-status")
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    assert _mirror(kafka, topic).exit_code == 0
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[10:15])
    link = _status(kafka, topic)
    assert (link["state"], link["lag_records"]) == ("ended", 0)
    link = _status(kafka, topic, "--from", kafka.bootstrap)
    (row,) = link["partitions"]
    assert (link["lag_records"], row["position"], row["source_end"], row["passed_on"]) == (5, 10, 15, row["batches"])
    shown = run("mirror", "status", "--to", kafka.bootstrap, "--name", f"cli-{topic}", *JOURNAL).stdout.splitlines()
    assert re.match(rf"link cli-{topic}: ended .* ago, process \d+ on .*; from {re.escape(kafka.bootstrap)}", shown[0])
    assert shown[1].split()[:4] == ["source", "target", "position", "end"]
    assert shown[2].split()[:5] == [f"{topic}-0", f"copy.{topic}-0", "10", "10", "0"]
    every = run("mirror", "status", "--to", kafka.bootstrap, *JOURNAL, "--json")
    assert f"cli-{topic}" in [each["link"] for each in json.loads(every.stdout)]

    def offset(*arguments: str) -> Result:
        return run("mirror", "offset", *arguments, "--to", kafka.bootstrap, "--name", f"cli-{topic}", *JOURNAL)

    there = offset(f"{topic}:0", "4", "--json")
    target_offset = json.loads(there.stdout)["target_offset"]
    assert offset(topic, "4").stdout == f"{topic}-0 offset 4 is copy.{topic}-0 offset {target_offset}\n"
    back = offset(f"copy.{topic}", str(target_offset), "--reverse")
    assert back.stdout == f"copy.{topic}-0 offset {target_offset} is {topic}-0 offset 4\n"
    later = offset(topic, "12")
    assert (later.exit_code, later.stderr) == (
        1,
        f"error: offset 12 of {topic}-0 is not mirrored yet: the mirror has everything before 10\n",
    )
    assert f"link cli-{topic} mirrors nothing from a topic nothing" in offset("nothing", "1").stderr


@pytest.mark.broker
def test_nodes_of_a_fleet_mirror_a_link_of_their_own_file(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka.bootstrap, "cli-fleet", partitions=2)
    for partition in range(2):
        confluent_write(kafka.bootstrap, tp(topic, partition), "zstd", UNUSUAL)
    file = tmp_path / "links.toml"
    file.write_text(
        f'''
        [links.cli-fleet]
        topics = ["{topic}"]
        rename = "copy.{{topic}}"
        replicas = 1
        journal = "mirror-cli-journal"
        source.bootstrap = "{kafka.bootstrap}"
        target.bootstrap = "{kafka.bootstrap}"
        '''
    )
    store = ("--store", f"sqlite:///{tmp_path / 'store.db'}")
    config = ("--mirror-config", str(file))
    with program("work", "serve", *store, *config, "--bootstrap", kafka.bootstrap) as node:
        done = run("mirror", "--config", str(file), "--engine", "fleet", *store, "--json")
        assert done.exit_code == 0, done.stderr
        row = json.loads(done.stdout)
        assert row["records"] == 2 * len(UNUSUAL) == assert_equal(kafka.bootstrap, topic, partitions=2)
        node.send_signal(signal.SIGINT)
        _, told = node.communicate(timeout=SECONDS)
    assert b"running jobs of group jobs" in told


@pytest.mark.broker
def test_a_mirror_counts_its_target_for_the_audit(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "cli-audit")
    audit = f"audit-{topic}"
    confluent_write(kafka.bootstrap, tp(topic), "zstd", UNUSUAL)
    where = ("--bootstrap", kafka.bootstrap, "--audit-topic", audit)
    edge = run("audit", "tally", topic, "--tier", "edge", "--as", f"copy.{topic}", *where)
    assert edge.exit_code == 0, edge.stderr
    link = link_of(
        kafka.bootstrap, topic, name=f"cli-{topic}", audit=LinkAudit(tier="hub", topic=audit, brokers=kafka.bootstrap)
    )
    assert mirror(link).records == len(UNUSUAL)
    compared = run("audit", "compare", "--tier", "edge", "--tier", "hub", "--delay", "0", "--all", "--json", *where)
    verdicts = {json.loads(line)["verdict"] for line in compared.stdout.splitlines() if "verdict" in line}
    assert (compared.exit_code, verdicts) == (0, {"complete"})


@pytest.mark.broker
def test_a_mirror_that_follows_counts_again_and_again(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "cli-counting")
    audit = f"audit-{topic}"
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    link = link_of(kafka.bootstrap, topic, audit=LinkAudit(tier="hub", topic=audit, every=1.0))
    stopped = threading.Event()
    thread = threading.Thread(target=lambda: run_links([link], follow=True, is_stopped=stopped.is_set))
    thread.start()
    try:
        eventually(lambda: _counted(kafka, audit) == 10, "the first records are counted")
        confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[10:15])
        eventually(lambda: _counted(kafka, audit) == 15, "so are those that came later")
        confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[15:17])
        eventually(lambda: len(seen(kafka.bootstrap, f"copy.{topic}")) == 17, "the last ones are mirrored")
    finally:
        stopped.set()
        thread.join(60)
    assert _counted(kafka, audit) == 17


def _counted(kafka: LocalCluster, audit: str) -> int:
    """The records in the longest tally of an audit topic: it replaces the others."""
    with Admin(kafka.bootstrap) as admin:
        if audit not in admin.topic_names():
            return 0
    notes = read_notes(Brokers(bootstrap=kafka.bootstrap), audit)
    return max((note.records for note in notes.tallies.values() if isinstance(note, RangeTally)), default=0)


@pytest.mark.broker
def test_a_cluster_without_links_says_so(kafka: LocalCluster) -> None:
    for command in (["status"], ["offset", "clicks", "1"], ["groups", "g", "--from", kafka.bootstrap]):
        result = run("mirror", *command, "--to", kafka.bootstrap, "--journal", "no-such-journal")
        assert result.exit_code == 1
        assert "no link has mirrored to this cluster" in result.stderr


@pytest.mark.broker
def test_a_fault_is_reported_with_the_option_that_accepts_it(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "cli-foreign")
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(f"copy.{topic}", replicas=1)
    confluent_write(kafka.bootstrap, tp(f"copy.{topic}"), "none", UNUSUAL[:3])
    stopped = _mirror(kafka, topic)
    assert stopped.exit_code == 1
    assert f"link cli-{topic}: {topic}-0: not mirrored any further" in stopped.stderr
    assert "--on-foreign continue" in stopped.stderr
    assert "1 partition failed" in stopped.stdout
    every = run("mirror", "status", "--to", kafka.bootstrap, *JOURNAL).stdout.splitlines()
    (error,) = (line for line in every if line.startswith(f"  error: {topic}-0 -> "))
    assert error.endswith("--on-foreign continue")
    accepted = _mirror(kafka, topic, "--on-foreign", "continue")
    assert accepted.exit_code == 0
    assert f"{topic}-0: accepted: " in accepted.stderr
    assert len(seen(kafka.bootstrap, f"copy.{topic}")) == 13
    into_itself = run("mirror", topic, "--from", kafka.bootstrap, "--to", kafka.bootstrap, *JOURNAL)
    assert into_itself.exit_code == 1
    assert into_itself.stderr.startswith(f"error: link mirror: would copy topic {topic} into itself")


def test_a_port_for_metrics_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("mirror", "clicks", "--from", "a:1", "--to", "b:1", "--prometheus", listener)
    assert result.exit_code == 1
    assert result.stderr == f"error: --prometheus {listener} cannot be served: Address already in use\n"


def test_a_link_that_an_internal_error_ends_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(Mirroring, "run", crash)
    monkeypatch.setattr("ottla.cli.mirror.run.require_brokers", lambda *_, **__: None)
    for follow in ((), ("--follow",)):
        done = run("mirror", "clicks", "--from", "127.0.0.1:1", "--to", "127.0.0.1:1", "--json", *follow)
        assert done.exit_code == 1
        assert "error: link mirror: internal error, please report it: ZeroDivisionError: by zero\n" in done.stderr
        assert "ZeroDivisionError" in json.loads(done.stdout)["error"]


def test_a_link_that_ends_without_a_report_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkRun, "_mirror", lambda _: None)
    monkeypatch.setattr("ottla.cli.mirror.run.require_brokers", lambda *_, **__: None)
    assert run("mirror", "clicks", "--from", "127.0.0.1:1", "--to", "127.0.0.1:1").exit_code == 1


def test_an_error_with_several_lines_is_shown_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.mirror.run.require_brokers", lambda *_, **__: None)
    away = run("mirror", "clicks", "--from", "127.0.0.1:1", "--to", "127.0.0.1:1", "--timeout", "0.5")
    first, second, *_ = away.stderr.splitlines()
    assert (away.exit_code, first.startswith("error: link mirror: no broker reachable after ")) == (1, True)
    assert second.startswith("  127.0.0.1:1: no TCP connection")


@pytest.mark.broker
def test_advice_about_security_is_in_terms_of_the_files_that_have_it(kafka: LocalCluster) -> None:
    secure = kafka.secure_bootstrap or ""
    plain = run("mirror", "clicks", "--from", secure, "--to", kafka.bootstrap, "--timeout", "5")
    assert "set tls = true, or ca_file to the authority that signed its certificate, in the file of" in plain.stderr
    assert " --tls" not in plain.stderr + run("mirror", "status", "--to", secure).stderr


def test_a_lag_that_was_published_long_ago_says_so() -> None:
    process = ProcessNote("host", 1, since=0.0, at=1_000.0, state="ended", source="edge:9092")
    partition = PartitionStatus(tp("clicks"), tp("copy"), 5, 5, Lag(0, 0, 0.0))
    old = LinkStatus("oslo", (partition,), process, "ended", lag_at=1_000.0)
    assert status_text(old, now=4_600.0, width=None).splitlines()[-1] == (
        "  END and lag are those of 1h ago; with --from they are those of now"
    )
    assert "with --from" not in status_text(replace(old, lag_at=4_600.0), now=4_600.0, width=None)


@pytest.mark.parametrize(("typed", "meant"), [("checks", "check"), ("stat", "status"), ("offsets", "offset")])
def test_a_command_with_a_typo_is_not_taken_for_a_topic(typed: str, meant: str) -> None:
    result = run("mirror", typed, "x")
    assert result.exit_code == 2
    assert "did you mean '" in result.stderr
    assert f"mirror {meant}'" in result.stderr
    topic = run("mirror", typed, "--from", "127.0.0.1:1")
    assert "--to HOST:PORT,... is missing" in topic.stderr, "with a source it is a topic"


@pytest.mark.broker
def test_groups_are_translated_there_and_back(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "cli-groups")
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    group = f"group-{topic}"
    assert _mirror(kafka, topic).exit_code == 0
    with Admin(kafka.bootstrap) as admin:
        admin.groups.set_offsets(group, {tp(topic): 4})

        def groups(*options: str) -> Result:
            sides = ("--from", kafka.bootstrap, "--to", kafka.bootstrap, "--name", f"cli-{topic}")
            return run("mirror", "groups", group, *sides, *JOURNAL, *options)

        (row,) = json.loads(groups("--json", "--dry-run").stdout)
        assert (row["source_offset"], row["before"], row["outcome"]) == (4, None, "would_commit")
        assert "1 of 1 offsets would be committed" in groups("--dry-run").stderr
        assert tp(f"copy.{topic}") not in admin.groups.committed(group)
        done = groups()
        assert "1 of 1 offsets were committed" in done.stderr
        assert admin.groups.committed(group)[tp(f"copy.{topic}")].offset == row["target_offset"]
        admin.groups.set_offsets(group, {TopicPartition(f"copy.{topic}", 0): row["target_offset"] + 3})
        groups("--reverse")
        assert admin.groups.committed(group)[tp(topic)].offset == 7
        nothing = groups("no-such-group")
        assert "error: group no-such-group: no committed offsets of mirrored partitions at the source" in nothing.stderr
        assert (nothing.exit_code, groups("no-such-group*").exit_code) == (1, 0)


@pytest.mark.broker
def test_a_link_that_is_not_there_is_an_error_that_names_those_that_are(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "cli-names")
    assert _mirror(kafka, topic).exit_code == 0
    for command in (["status"], ["offset", topic, "1"], ["groups", "g", "--from", kafka.bootstrap]):
        result = run("mirror", *command, "--to", kafka.bootstrap, "--name", "nobody", *JOURNAL)
        assert result.exit_code == 1
        assert "no link nobody has mirrored to this cluster" in result.stderr
        assert f"cli-{topic}" in result.stderr


@pytest.mark.broker
def test_offsets_of_a_link_are_not_taken_to_a_cluster_that_is_not_its_source(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "cli-source")
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:3])
    assert _mirror(kafka, topic).exit_code == 0
    sides = ("--to", kafka.bootstrap, "--name", f"cli-{topic}", *JOURNAL)
    with FakeKafka() as other:
        for command in (["status"], ["groups", "g", "--reverse"]):
            result = run("mirror", *command, "--from", other.bootstrap, *sides)
            assert result.exit_code == 1
            assert f"--from is not the source of link cli-{topic}: it is cluster " in result.stderr


def _links_file(tmp_path: Path, kafka: LocalCluster, topic: str, more: str = "") -> str:
    secure = kafka.status()
    user, password = next(iter(secure.users.items()))
    (tmp_path / "password").write_text(password)
    path = tmp_path / "links.toml"
    path.write_text(
        f"""
[defaults]
journal = "{JOURNAL[1]}"
replicas = 1
rename = "{{source}}.{{topic}}"

[defaults.target]
bootstrap = "{kafka.bootstrap}"

[links.plain-{topic}]
topics = ["{topic}"]
source.bootstrap = "{kafka.bootstrap}"

[links.secure-{topic}]
topics = ["{topic}"]

[links.secure-{topic}.source]
bootstrap = "{kafka.secure_bootstrap}"
ca_file = "{secure.ca_file}"
username = "{user}"
password_file = "password"
{more}
"""
    )
    return str(path)


@pytest.mark.broker
def test_links_of_a_file_are_checked_and_run_side_by_side(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka.bootstrap, "cli-file")
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    path = _links_file(tmp_path, kafka, topic)
    checked = run("mirror", "check", path)
    assert checked.exit_code == 0, checked.output
    assert f"link secure-{topic}: {kafka.secure_bootstrap} -> {kafka.bootstrap}" in checked.stdout
    (row,) = [line.split() for line in checked.stdout.splitlines() if f" plain-{topic}.{topic} " in line]
    assert row[:5] == [topic, f"plain-{topic}.{topic}", "1", "-", "create"]
    done = run("mirror", "--config", path, "--json")
    assert done.exit_code == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["link"]: row["records"] for row in reports} == {f"plain-{topic}": 10, f"secure-{topic}": 10}
    for name in ("plain", "secure"):
        assert assert_equal(kafka.bootstrap, topic, target=f"{name}-{topic}.{topic}") == 10
    one = run("mirror", "--config", path, "--link", f"plain-{topic}")
    assert one.stdout == f"link plain-{topic}: nothing new in 1 partition\n"
    assert "has no link 'x'" in run("mirror", "--config", path, "--link", "x").stderr
    assert "TOPIC and --config are mutually exclusive" in run("mirror", topic, "--config", path).stderr


@pytest.mark.broker
def test_links_that_are_in_each_others_way_are_refused(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka.bootstrap, "cli-conflict")
    more = f"""
[links.third]
topics = "{topic}"
rename = "plain-{topic}.{{topic}}"
source.bootstrap = "{kafka.bootstrap}"
"""
    path = _links_file(tmp_path, kafka, topic, more)
    checked = run("mirror", "check", path, "--json")
    assert checked.exit_code == 1
    problems = {row["link"]: row["problems"] for row in json.loads(checked.stdout)}
    assert problems[f"plain-{topic}"] == []
    assert f"which link plain-{topic} writes" in problems["third"][0]
    refused = run("mirror", "--config", path)
    assert refused.exit_code == 1
    assert f"error: link third: topic {topic} would go into plain-{topic}.{topic}" in refused.stderr
    with Admin(kafka.bootstrap) as admin:
        assert f"plain-{topic}.{topic}" not in admin.topic_names()
    assert run("mirror", "check", path, "--link", f"plain-{topic}").exit_code == 0
    (tmp_path / "links.toml").write_text("[links.x]\ntopics = 5\n")
    wrong = run("mirror", "check", path)
    assert (wrong.exit_code, "[links.x] has no source" in wrong.stderr) == (2, True)


@pytest.mark.broker
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_mirror_that_follows_with_a_report(
    kafka: LocalCluster, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    topic = new_topic(kafka.bootstrap, "cli-signal")
    confluent_write(kafka.bootstrap, tp(topic), "none", UNUSUAL[:10])
    config = tmp_path / "side.toml"
    config.write_text(f"bootstrap = '{kafka.bootstrap}'\n")
    sides = ("--from-config", str(config), "--to", kafka.bootstrap, "--name", f"cli-{topic}")
    with program("mirror", topic, *sides, *RENAME, *JOURNAL, "--follow", stderr=subprocess.PIPE) as running:
        eventually(lambda: _has(kafka, f"copy.{topic}") and len(seen(kafka.bootstrap, f"copy.{topic}")) == 10)
        eventually(lambda: _status(kafka, topic)["state"] == "running", "it has published its state")
        (row,) = _status(kafka, topic, "--from", kafka.bootstrap)["partitions"]
        assert (row["position"], row["lag_records"]) == (10, 0)
        second = _mirror(kafka, topic)
        assert second.exit_code == 1
        assert "is being mirrored by process" in second.stderr
        assert "--take-over" in second.stderr
        running.send_signal(number)
        out, err = running.communicate(timeout=SECONDS)
        assert running.returncode == code, err
    assert f"link cli-{topic}: 10 records" in out.decode()
    assert "stopping once what is under way is acknowledged" in err.decode()
    assert "Traceback" not in err.decode()
    assert _status(kafka, topic)["state"] == "ended"


def _has(kafka: LocalCluster, topic: str) -> bool:
    with Admin(kafka.bootstrap) as admin:
        return topic in admin.topic_names()
