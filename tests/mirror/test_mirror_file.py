"""Links from a TOML file: everything that can be said, and one clear error for what cannot."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ottla.config import OAuthBearer, Plain, Scram, Security, Tls
from ottla.errors import ConfigError
from ottla.jobs.brokers import Brokers
from ottla.jobs.mirror_file import parse_rate, read_links, read_side
from ottla.mirror.rules import Action

WHOLE = """
[defaults]
rename = "{source}.{topic}"
on_foreign = "continue"
patience = 60

[defaults.target]
bootstrap = "hub-1:9092,hub-2:9092"

[defaults.rates]
clicks = 1000

[links.oslo]
topics = ["clicks", "shop.*"]
start = 2026-01-31T12:00:00Z
rate = "50MB/s"
groups = "billing*"
isolated = ["shop.*"]
replicas = 3
follow_settings = false
journal = "positions"
on_lost = "continue"

[links.oslo.source]
bootstrap = ["edge-1:9093", "edge-2:9093"]
ca_file = "ca.pem"
username = "mirror"
password_file = "secret"
timeout = 30

[links.oslo.rates]
"shop.orders" = "10KiB/s"

[links.oslo.priorities]
clicks = 5

[links.bergen]
topics = "clicks"
start = "latest"
rename = "{topic}"

[links.bergen.source]
bootstrap = "bergen"
sasl_mechanism = "plain"
username = "u"
password_env = "BERGEN"
tls = true

[links.bergen.target]
bootstrap = "other:9092"
oauth_token_file = "token"
"""


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "links.toml"
    path.write_text(text)
    (tmp_path / "ca.pem").write_text("pem")
    (tmp_path / "secret").write_text("hush\nsecond line")
    return path


def _security(brokers: Brokers) -> Security:
    assert isinstance(brokers.security, Security)
    return brokers.security


def _tls(brokers: Brokers) -> Tls:
    tls = _security(brokers).tls
    assert tls is not None
    return tls


def test_a_file_has_links_with_defaults(tmp_path: Path) -> None:
    oslo, bergen = read_links(_write(tmp_path, WHOLE), environment={"BERGEN": "pw"})
    assert (oslo.name, oslo.topics, oslo.rename) == ("oslo", ("clicks", "shop.*"), "{source}.{topic}")
    assert oslo.start == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert (oslo.rate, dict(oslo.rates)) == (50e6, {"oslo.clicks": 1000.0, "oslo.shop.orders": 10240.0})
    assert (oslo.groups, oslo.isolated, oslo.replicas) == (("billing*",), ("shop.*",), 3)
    assert (oslo.follow_settings, oslo.journal) == (False, "positions")
    assert (oslo.rules.on_foreign, oslo.rules.on_lost) == (Action.CONTINUE, Action.CONTINUE)
    assert oslo.rules.on_target_lost is Action.STOP
    assert (oslo.rules.patience, oslo.rules.priorities) == (60.0, {"oslo.clicks": 5})
    source, target = oslo.source_brokers, oslo.target_brokers
    assert (source.bootstrap, source.timeouts.total) == ("edge-1:9093,edge-2:9093", 30.0)
    assert _tls(source).ca_file == tmp_path / "ca.pem"
    assert _security(source).sasl == Scram("mirror", "hush")
    assert target.bootstrap == "hub-1:9092,hub-2:9092"
    assert (bergen.rename, bergen.start) == ("{topic}", "latest")
    assert dict(bergen.rates) == {"clicks": 1000.0}
    assert _security(bergen.source_brokers).sasl == Plain("u", "pw")
    assert bergen.target_brokers.bootstrap == "other:9092"
    assert isinstance(_security(bergen.target_brokers).sasl, OAuthBearer)


SIMPLE = """
[links.oslo]
topics = ["clicks"]
{link}
[links.oslo.source]
bootstrap = "a:9092"
{source}
[links.oslo.target]
bootstrap = "b:9092"
{rest}
"""


@pytest.mark.parametrize(
    ("place", "text", "message"),
    [
        ("link", "topic = 1", r"\[links.oslo\] has an unknown key 'topic': did you mean 'topics'\?"),
        ("link", "zzz = 1", r"\[links.oslo\] has an unknown key 'zzz': accepted are audit, exclude, follow_settings"),
        ("link", "rate = true", r"\[links.oslo\] rate must be bytes per second .*, got true"),
        ("link", "rate = '5 apples'", r"\[links.oslo\] is invalid: '5 apples' is not a rate"),
        ("link", "groups = [1]", r"\[links.oslo\] groups must be a list of texts, got a list"),
        ("link", "start = 'soon'", r"\[links.oslo\] start is 'soon'; accepted are"),
        ("link", "start = 2026-01-31T12:00:00", r"\[links.oslo\] start is the time .* without a zone"),
        ("link", "start = -1", r"\[links.oslo\] start must be .*, got -1"),
        ("link", "on_lost = 'ignore'", r"\[links.oslo\] is invalid: on_lost is 'ignore'; accepted are 'stop' and"),
        ("link", "rename = 'x'", r"\[links.oslo\] is invalid: the rename rule is 'x'"),
        ("link", "replicas = '3'", r"\[links.oslo\] replicas must be a whole number, got a text"),
        ("link", "follow_settings = 1", r"\[links.oslo\] follow_settings must be true or false, got 1"),
        ("link", "patience = 0", r"\[links.oslo\] patience must be seconds above 0"),
        ("source", "tsl = true", r"\[links.oslo.source\] has an unknown key 'tsl': did you mean 'tls'\?"),
        ("source", "ca_file = 'none.pem'", r"\[links.oslo.source\] names the file .*none.pem, which does not exist"),
        ("source", "username = 'u'", r"\[links.oslo.source\] has a username and no password"),
        ("source", "password_env = 'NO_SUCH'", r"password_env names the variable NO_SUCH, which is not set"),
        ("source", "password_file = 'no'", r"password_file: .*no cannot be read: No such file"),
        ("source", "sasl_mechanism = 'GSSAPI'", r"sasl_mechanism is 'GSSAPI'; accepted are PLAIN"),
        ("source", "sasl_mechanism = 'OAUTHBEARER'", r"has OAUTHBEARER without oauth_token_file"),
        ("source", "key_file = 'ca.pem'", r"\[links.oslo.source\] is invalid: .*needs cert_file"),
        ("rest", "[links.oslo.rates]\nclicks = 'x'", r"\[links.oslo.rates\] is invalid: 'x' is not a rate"),
        ("rest", "[links.oslo.priorities]\nclicks = 'x'", r"\[links.oslo.priorities\] clicks must be a whole number"),
        ("rest", "[links.two]\ntopics = 'x'", r"\[links.two\] has no source: write a table \[links.two.source\]"),
        ("rest", "[links.x", "is not TOML: .*line 10"),
        ("rest", "[links]\nx = 1", r"\[links.x\] must be a table, got 1"),
        ("rest", "[other]", r"has an unknown key 'other': accepted are defaults, links"),
        ("rest", "[defaults]\ntarget = 1", r"\[defaults.target\] must be a table, got 1|\[links.oslo.target\]"),
    ],
)
def test_what_is_wrong_is_one_error_with_its_place(tmp_path: Path, place: str, text: str, message: str) -> None:
    parts = {"link": "", "source": "", "rest": "", place: text}
    with pytest.raises(ConfigError, match=message) as error:
        read_links(_write(tmp_path, SIMPLE.format(**parts)))
    assert str(error.value).count("links.toml") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no links"),
        ("links = 5", r"\[links\] must be a table, got 5"),
        ("[links.oslo]", r"\[links.oslo\] has no source"),
        ("[links.'a b']\ntopics='x'\nsource.bootstrap='a'\ntarget.bootstrap='b'", "the name of a link is 'a b'"),
        ("[links.a]\nsource.bootstrap='a'\ntarget.bootstrap='b'", "link a names no topic"),
        ("[links.a]\ntopics='x'\nsource.bootstrap='a b'\ntarget.bootstrap='b'", r"\[links.a.source\] is invalid: boot"),
        ("[links.a]\ntopics='x'\nsource.tls=true\ntarget.bootstrap='b'", r"\[links.a.source\] has no bootstrap"),
    ],
)
def test_a_file_without_what_a_link_needs(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_links(_write(tmp_path, text))


def test_errors_do_not_show_secrets(tmp_path: Path) -> None:
    text = SIMPLE.format(link="", source="password = 'swordfish'", rest="")
    with pytest.raises(ConfigError, match="a secret in password: write password_file or password_env") as error:
        read_links(_write(tmp_path, text))
    assert "swordfish" not in str(error.value)


def test_a_configuration_of_mirrormaker_says_where_its_settings_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text("clusters = edge, hub\nedge->hub.topics = .*\n")
    with pytest.raises(ConfigError, match=r"is not TOML: .*; docs/guides/from-mirrormaker.md says what"):
        read_links(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml cannot be read: No such file"):
        read_links(tmp_path / "none.toml")


def test_one_side_has_a_file_of_its_own(tmp_path: Path) -> None:
    path = _write(tmp_path, "bootstrap = 'a:9092'\nusername = 'u'\npassword_file = 'secret'\n")
    assert read_side(path).bootstrap == "a:9092"
    side = read_side(path, bootstrap="b:9093")
    assert (side.bootstrap, _security(side).sasl) == ("b:9093", Scram("u", "hush"))


def test_rates_are_bytes_per_second() -> None:
    assert [parse_rate(text) for text in ("100B", "2kB/s", "1.5 MB/s", "1GiB/s")] == [100, 2000, 1.5e6, 1 << 30]
    for wrong in ("", "10", "10MB/h", "x"):
        with pytest.raises(ValueError, match="is not a rate"):
            parse_rate(wrong)
