"""Settings of a gateway: each mistake is one line that names its place, and nothing is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands import run, run_program

from ottla.gateway.access.rules import Verb
from ottla.gateway.access.secrets import hash_secret, line_of
from ottla.gateway.settings import Listen
from ottla.gateway.settings_file import read_settings

_CLUSTER = '[cluster]\nbootstrap = "localhost:9092"\n'
_GUARDED = """
[http]
listen = "0.0.0.0:8082"
[access]
secrets_file = "secrets.txt"
[[access.rules]]
who = ["billing"]
topics = ["shop.*"]
verbs = ["produce"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secrets.txt").write_text(line_of("billing", hash_secret(b"secret of billing")) + "\n")
    (tmp_path / "broken.txt").write_text("billing:hunter2hunter2\n")
    (tmp_path / "empty.txt").write_text("# nothing\n")
    return tmp_path


def _file(folder: Path, text: str) -> str:
    path = folder / "gateway.toml"
    path.write_text(text)
    return str(path)


def test_a_file_has_everything(folder: Path) -> None:
    text = (
        'name = "edge"\n'
        + _CLUSTER
        + _GUARDED
        + """
[access.rates]
requests = 100
bytes = "10MB/s"
[ops]
listen = "8083"
[limits]
body_bytes = 1000
ack_seconds = 5
[spool]
path = "spool"
fsync = false
[producer]
compression = "zstd"
[audit]
tier = "edge"
"""
    )
    settings = read_settings(_file(folder, text))
    assert (settings.name, settings.http, settings.ops) == ("edge", Listen("0.0.0.0", 8082), Listen("127.0.0.1", 8083))
    assert settings.access.needs_login
    assert settings.access.rules[0].verbs == {Verb.PRODUCE}
    assert (settings.access.rates.requests, settings.access.rates.bytes) == (100, 10e6)
    assert (settings.limits.body_bytes, settings.limits.ack_seconds) == (1000, 5)
    assert settings.spool == folder / "spool"
    assert settings.audit is not None
    ended = run("gateway", "check", str(folder / "gateway.toml"), "--json")
    assert (ended.exit_code, json.loads(ended.stdout)["secrets"]) == (0, ["billing"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "is not TOML"),
        ('[cluster]\nbootstrap = ""\n', "[cluster]"),
        ("[http]\nlisten = '8082'\n", "[cluster] has no bootstrap"),
        (_CLUSTER + "[htpp]\n", "unknown key 'htpp': did you mean 'http'?"),
        (_CLUSTER + "[http]\nlisten = 8082\n", "[http] listen must be a text"),
        (_CLUSTER + "[http]\nlisten = 'here'\n", "is not a place to listen"),
        (_CLUSTER + "[http]\nlisten = '1.2.3.4:99999'\n", "is not a place to listen"),
        (_CLUSTER + "[http]\nlisten = '::1:80'\n", "in brackets"),
        (_CLUSTER + "[http]\nlisten = '0.0.0.0:8082'\n", "needs logins"),
        (_CLUSTER + _GUARDED.partition("[[")[0], "needs rules"),
        (
            _CLUSTER + "[http]\nlisten = '0.0.0.0:8082'\n[access]\nanyone_may_write = 'yes'\n",
            "anyone_may_write must be",
        ),
        (_CLUSTER + "[http]\ncert_file = 'secrets.txt'\n", "needs cert_file and key_file"),
        (_CLUSTER + "[http]\ncert_file = 'no.pem'\nkey_file = 'no.pem'\n", "which does not exist"),
        (_CLUSTER + "[http]\ncompat = ['kafkaboy']\n", "accepted are kafboy, flasfka"),
        (_CLUSTER + "[http]\nv2_status = 'wrong'\n", "accepted are honest and confluent"),
        (_CLUSTER + "[access]\nsecrets_file = 'none.txt'\n", "cannot be read"),
        (_CLUSTER + "[access]\nsecrets_file = 'empty.txt'\n", "has no secrets"),
        (_CLUSTER + "[access]\nsecrets_file = 'broken.txt'\n", "line 1"),
        (_CLUSTER + "[access]\ncertificates = true\n", "need TLS with client_ca_file"),
        (_CLUSTER + "[access]\nrules = 'all'\n", "rules must be tables"),
        (_CLUSTER + "[[access.rules]]\nwho = ['a']\ntopics = ['t']\nverbs = ['write']\n", "is not a verb"),
        (_CLUSTER + "[[access.rules]]\nwho = ['a']\nverbs = ['produce']\n", "rules, number 1] is invalid"),
        (
            _CLUSTER + "[[access.rules]]\nwho = ['a']\ntopics = ['t']\nverbs = ['produce']\nwhy = 1\n",
            "unknown key 'why'",
        ),
        (_CLUSTER + "[access.rates]\nbytes = '10'\n", "is not a rate"),
        (_CLUSTER + "[access.rates]\nrequests = -1\n", "above 0"),
        (_CLUSTER + "[limits]\nbody_bytes = 0\n", "above 0"),
        (_CLUSTER + "[limits]\nbody_bytes = 1.5\n", "a whole number"),
        (_CLUSTER + "[limits]\nbody_byte = 1\n", "did you mean 'body_bytes'?"),
        (_CLUSTER + "[spool]\nfsync = true\n", "[spool] has no path"),
        (_CLUSTER + "[audit]\nservice = 'x'\n", "has no tier"),
        ('name = "a b"\n' + _CLUSTER, "is not a name for a gateway"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, text: str, said: str) -> None:
    ended = run("gateway", "check", _file(folder, text))
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("error: ")
    assert "hunter2" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to listen on"),
        (["--http", "nonsense"], "--http: 'nonsense' is not a place to listen"),
        (["--http", "0.0.0.0:8082"], "can be reached from other machines"),
        (["--http", "8082", "--bootstrap", "a:b"], "--bootstrap"),
        (["--http", "8082", "--compat", "other"], "--compat"),
        (["--http", "8082", "--name", "a b"], "is not a name"),
        (["--http", "8082", "--config", "none.toml"], "--config"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], said: str) -> None:
    ended = run(
        "gateway", "run", *(["--bootstrap", "localhost:9092"] if "--bootstrap" not in arguments else []), *arguments
    )
    assert ended.exit_code == 2, ended.output
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_secret_becomes_a_line_that_the_gateway_reads(tmp_path: Path) -> None:
    ended = run_program("gateway", "secret", "billing", stdin=b"correct horse\n")
    token = run_program("gateway", "secret", "shop", "--token")
    assert (ended.returncode, token.returncode) == (0, 0)
    assert b"correct horse" not in ended.stdout
    (tmp_path / "secrets.txt").write_bytes(ended.stdout + token.stdout)
    settings = read_settings(_file(tmp_path, _CLUSTER + "[access]\nsecrets_file = 'secrets.txt'\n"))
    assert settings.access.secrets["billing"].matches(b"correct horse")
    assert settings.access.secrets["shop"].matches(token.stderr.split()[-1])
    for arguments, stdin in ((["a b"], b"correct horse\n"), (["billing"], b"short\n"), (["billing"], b"")):
        wrong = run_program("gateway", "secret", *arguments, stdin=stdin)
        assert (wrong.returncode, wrong.stderr.count(b"\n"), wrong.stdout) == (2, 1, b"")
