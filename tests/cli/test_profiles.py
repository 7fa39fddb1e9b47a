"""Profiles: clusters by their names in the user's settings file, and what goes before what."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ottla.cli.profiles.file import config_file, read_profiles
from ottla.cli.profiles.overriding import overridden
from ottla.cluster import LocalCluster
from ottla.config import OAuthBearer, Plain, Scram, Security
from ottla.errors import ConfigError
from ottla.net.access_table import security_of
from ottla.settings_table import Table
from ottla.testing import FakeKafka

from .commands import run

FILE = """
default = "dev"

[profiles.dev]
bootstrap = "dev:9092"

[profiles.prod]
bootstrap = ["prod-1:9093", "prod-2:9093"]
ca_file = "ca.pem"
sasl_mechanism = "SCRAM-SHA-256"
username = "alice"
password_env = "PROD_PASSWORD"

[profiles.cloud]
bootstrap = "cloud:9092"
tls = true
oauth_token_url = "https://idp/token"
oauth_client_id = "me"
oauth_client_secret_file = "client-secret"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    (tmp_path / "ca.pem").write_text("pem")
    (tmp_path / "client-secret").write_text("hush\n")
    monkeypatch.setenv("OTTLA_CONFIG", str(path))
    monkeypatch.delenv("OTTLA_BOOTSTRAP", raising=False)
    monkeypatch.setenv("OTTLA_DIR", str(tmp_path / "clusters"))
    return path


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"clicks": 1}, auto_create=None) as kafka:
        yield kafka


def _environment(file: Path, **others: str) -> Mapping[str, str]:
    return {"OTTLA_CONFIG": str(file), **others}


def test_a_profile_has_addresses_and_security(file: Path) -> None:
    profiles = read_profiles(_environment(file))
    assert list(profiles.by_name) == ["dev", "prod", "cloud"]
    assert profiles.default is profiles.by_name["dev"]
    assert profiles.by_name["prod"].bootstrap == "prod-1:9093,prod-2:9093"
    security = profiles.by_name["prod"].security({"PROD_PASSWORD": "s3cret"})
    assert security.sasl == Scram("alice", "s3cret", "SCRAM-SHA-256")
    assert security.tls is not None
    assert security.tls.ca_file == file.parent / "ca.pem"  # relative to the file
    assert isinstance(profiles.by_name["cloud"].security({}).sasl, OAuthBearer)


def test_a_secret_is_read_only_for_the_profile_that_is_used(file: Path, fake: FakeKafka) -> None:
    file.write_text(FILE.replace("dev:9092", fake.bootstrap))
    assert run("topics", "list").exit_code == 0
    ended = run("topics", "list", "--profile", "prod")
    assert ended.exit_code == 2
    assert "[profiles.prod] password_env names the variable PROD_PASSWORD, which is not set" in ended.stderr


def _said(fake: FakeKafka, *options: str, **environment: str) -> str:
    ended = run("topics", "list", *options, env=environment)
    assert ended.exit_code == 0, ended.output
    return ended.stderr.replace(fake.bootstrap, "HERE").strip()


def test_what_goes_before_what(file: Path, fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    here = fake.bootstrap
    profiles = f'[profiles.here]\nbootstrap = "{here}"\n[profiles.away]\nbootstrap = "away:1"\n'
    file.write_text(f'default = "here"\n{profiles}')
    assert _said(fake) == "using the default profile 'here' at HERE"
    file.write_text(f'default = "away"\n{profiles}')
    assert _said(fake, OTTLA_BOOTSTRAP=here) == "using OTTLA_BOOTSTRAP=HERE"
    assert _said(fake, OTTLA_BOOTSTRAP="away:1", OTTLA_PROFILE="here") == (
        "using profile 'here' of OTTLA_PROFILE at HERE"
    )
    assert _said(fake, "--profile", "here", OTTLA_BOOTSTRAP="away:1", OTTLA_PROFILE="away") == (
        "using profile 'here' at HERE"
    )
    assert _said(fake, "--bootstrap", here, "--profile", "away") == "using profile 'away' at HERE"
    # An address of the command line is that of another cluster: the default profile's login is not sent there.
    assert _said(fake, "--bootstrap", here) == ""
    assert _said(fake, "--bootstrap", here, OTTLA_PROFILE="away") == ""
    file.write_text("")
    monkeypatch.setenv("OTTLA_BOOTSTRAP", here)
    assert _said(fake) == "using OTTLA_BOOTSTRAP=HERE"


@pytest.mark.broker
def test_a_profile_logs_in_to_a_secure_cluster(file: Path, kafka: LocalCluster) -> None:
    status = kafka.status()
    name, password = next(iter(status.users.items()))
    (file.parent / "password").write_text(f"{password}\n")
    file.write_text(
        f'[profiles.secure]\nbootstrap = "{status.secure_bootstrap}"\nca_file = "{status.ca_file}"\n'
        f'username = "{name}"\npassword_file = "password"\n'
    )
    ended = run("topics", "list", "--profile", "secure")
    assert ended.exit_code == 0, ended.output
    wrong = run("topics", "list", "--profile", "secure", "--username", "nobody", env={"OTTLA_PASSWORD": "wrong"})
    assert wrong.exit_code == 1
    assert password not in ended.output + wrong.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.a]\nbootstrap = 'a:1'\npassword = 's3cret'", "[profiles.a] has a secret in password: write"),
        ("[profiles.a]\nbootstrap = 'a:1'\noauth_token = 's3cret'", "a secret in oauth_token: write oauth_token_file"),
        ("[profiles.a]\nbootstrap = 'a:1'\nbootstraps = 'b:1'", "unknown key 'bootstraps': did you mean 'bootstrap'?"),
        ("[profiles.a]\nbootstrap = 'a:1'\ntimeout = 5", "[profiles.a] has an unknown key 'timeout'"),
        ("[profiles.a]\nusername = 'alice'", "[profiles.a] has no bootstrap: write HOST:PORT,..."),
        ("[profiles.a]\nbootstrap = 'alice:s3cret@a:1'", "'***@a:1' has more than HOST:PORT"),
        ("[profiles.'9092']\nbootstrap = 'a:1'", "has a profile '9092': a name begins with a letter"),
        ("default = 'b'\n[profiles.a]\nbootstrap = 'a:1'", "has the default 'b', which is none of its profiles: a"),
        ("[profile.a]\nbootstrap = 'a:1'", "has an unknown key 'profile': did you mean 'profiles'?"),
        ("[profiles.a\n", "is not TOML"),
        ("[profiles.other]\nbootstrap = 'a:1'", "no profile 'a' in"),
    ],
)
def test_an_invalid_file_is_one_error_with_its_place(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    ended = run("topics", "list", "--profile", "a")
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())
    assert ended.stderr.startswith("error: ")
    assert "s3cret" not in ended.output


def test_an_unknown_profile_names_the_known_ones(file: Path) -> None:
    ended = run("topics", "list", "--profile", "prd")
    assert ended.exit_code == 2
    assert f"no profile 'prd' in {file}: it has dev, prod, cloud" in " ".join(ended.stderr.split())
    assert run("topics", "list", "--profile", "").exit_code == 2


def test_a_file_that_is_missing(file: Path, tmp_path: Path) -> None:
    file.unlink()
    ended = run("topics", "list")
    assert ended.exit_code == 2
    assert f"the file {file} cannot be read: No such file" in " ".join(ended.stderr.split())
    elsewhere = {"XDG_CONFIG_HOME": str(tmp_path / "none"), "OTTLA_CONFIG": ""}
    ended = run("topics", "list", "--profile", "dev", env=elsewhere)
    assert ended.exit_code == 2
    assert "no profile 'dev': there is no file" in ended.stderr
    ended = run("topics", "list", env=elsewhere)
    assert ended.stderr.startswith("error: no brokers: pass --bootstrap HOST:PORT or --profile NAME")


def test_the_usual_place_is_that_of_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_file({}) == tmp_path / "ottla" / "config.toml"


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    ended = run("profiles")
    assert ended.exit_code == 2
    assert f"chmod go-w {file}" in " ".join(ended.stderr.split())


def test_profiles_lists_them_without_secrets(file: Path) -> None:
    ended = run("profiles", env={"PROD_PASSWORD": "s3cret", "OTTLA_PROFILE": "prod"})
    assert ended.exit_code == 0
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["profile", "dev", "prod", "cloud"]
    assert "alice (SCRAM-SHA-256)" in ended.stdout
    assert str(file) in ended.stderr
    ended = run("profiles", "--json")
    listed = json.loads(ended.stdout)
    rows = {row["name"]: row for row in listed["profiles"]}
    assert (listed["default"], listed["file"]) == ("dev", str(file))
    assert rows["dev"]["protocol"] == "PLAINTEXT"
    assert rows["prod"]["problem"] == "password_env names the variable PROD_PASSWORD, which is not set"
    assert rows["cloud"]["login"] == "token"
    assert "hush" not in ended.output


def _over(file: Path, name: str, environment: Mapping[str, str] | None = None, **given: object) -> Security:
    profile = read_profiles(_environment(file)).by_name[name]
    return security_of(overridden(profile.table, given, {"password_env": "P"}), {"PROD_PASSWORD": "old", "P": "new"})


def test_an_option_beside_a_profile_replaces_its_setting_and_what_belongs_to_it(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text("pem")
    changed = _over(file, "prod", ca_file=other)
    assert changed.tls is not None
    assert changed.tls.ca_file == other
    assert changed.sasl == Scram("alice", "old", "SCRAM-SHA-256")
    assert _over(file, "prod", sasl_mechanism="PLAIN").sasl == Plain("alice", "old")
    # A password belongs to its user.
    assert _over(file, "prod", username="bob").sasl == Scram("bob", "new", "SCRAM-SHA-256")
    (tmp_path / "password").write_text("third")
    assert _over(file, "prod", password_file=tmp_path / "password").sasl == Scram("alice", "third", "SCRAM-SHA-256")
    # One kind of login replaces the other.
    assert _over(file, "cloud", username="bob").sasl == Scram("bob", "new")
    assert isinstance(_over(file, "prod", oauth_token_file=other).sasl, OAuthBearer)
    tokens = _over(file, "cloud", oauth_scope="read").sasl
    assert isinstance(tokens, OAuthBearer)
    assert getattr(tokens.token, "scope", None) == "read"
    dev = _over(file, "dev", tls=True)
    assert dev.protocol == "SSL"


def test_a_certificate_takes_its_key_with_it(tmp_path: Path) -> None:
    table = Table({"cert_file": "old", "key_file": "old-key", "key_password_env": "K"}, "it", tmp_path)
    changed = overridden(table, {"cert_file": tmp_path / "new"}, {"key_password_env": "N"})
    assert changed.values == {"cert_file": str(tmp_path / "new"), "tls": True}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--username", "bob"], "--username needs a password: set OTTLA_PASSWORD, or pass --password-file"),
        (["--oauth-scope", "s"], "--oauth-scope needs --oauth-token-url"),
        (["--oauth-token-file", __file__, "--username", "bob"], "a token is for --sasl-mechanism OAUTHBEARER alone"),
    ],
)
def test_options_that_do_not_fit_a_profile(file: Path, options: list[str], said: str) -> None:
    ended = run("topics", "list", "--profile", "dev", *options)
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())


def test_a_profile_stands_in_place_of_an_address(file: Path, fake: FakeKafka, tmp_path: Path) -> None:
    file.write_text(f'[profiles.here]\nbootstrap = "{fake.bootstrap}"\n')
    ended = run("mirror", "status", "--to", "profile:here")
    assert "here" not in ended.stderr
    assert "no mirror has a journal" in ended.output or ended.exit_code in (0, 1)
    for arguments in (
        ("mirror", "status", "--to", "profile:there"),
        ("lake", "verify", str(tmp_path), "--against", "profile:there"),
        ("audit", "find", "clicks", "--left", "profile:there", "--right", "a:1"),
    ):
        ended = run(*arguments)
        assert ended.exit_code == 2, arguments
        assert "no profile 'there'" in ended.stderr
    # A host of that name stays an address.
    ended = run("mirror", "status", "--to", "profile:1", "--timeout", "0.2")
    assert ended.exit_code == 1
    ended = run("mirror", "status", "--to", "profile:here", "--to-config", str(file))
    assert "--to profile:here and --to-config are mutually exclusive" in ended.stderr


def test_the_login_of_the_default_profile_goes_to_its_own_brokers_alone(file: Path, fake: FakeKafka) -> None:
    file.write_text(
        f'default = "prod"\n[profiles.prod]\nbootstrap = "{fake.bootstrap}"\nsasl_mechanism = "PLAIN"\n'
        'username = "alice"\npassword_file = "client-secret"\n'
    )
    warned = "the password is sent without TLS"
    assert warned in run("topics", "list").stderr
    places = ("--data", f"a={fake.bootstrap}", "--data", f"b={fake.bootstrap}")
    assert warned not in run("audit", "compare", "clicks", *places).stderr
    assert warned in run("audit", "compare", "clicks", "--data", "a=profile:prod", *places[2:]).stderr


def test_the_gateway_takes_its_cluster_from_one_place(file: Path, tmp_path: Path) -> None:
    settings = tmp_path / "gateway.toml"
    settings.write_text('[cluster]\nbootstrap = "a:1"\n')
    ended = run("gateway", "run", "--http", "0", "--config", str(settings), "--profile", "dev")
    assert ended.exit_code == 2
    assert "--config has TLS and SASL of the cluster in its table [cluster]" in ended.stderr
    ended = run("gateway", "run", "--profile", "prod", "--http", "0")
    assert "PROD_PASSWORD, which is not set" in " ".join(ended.stderr.split())


def test_the_library_does_not_read_the_file(file: Path) -> None:
    from ottla import Admin

    with pytest.raises(ConfigError, match="no bootstrap address given"):
        Admin()


def test_the_login_of_a_profile_of_the_environment_is_not_sent_elsewhere(file: Path, fake: FakeKafka) -> None:
    """Its password is not even read. `--profile` on the command line says that it is meant."""
    assert run("topics", "list", "--bootstrap", fake.bootstrap, env={"OTTLA_PROFILE": "prod"}).exit_code == 0
    ended = run("topics", "list", "--bootstrap", fake.bootstrap, "--profile", "prod")
    assert "PROD_PASSWORD, which is not set" in ended.stderr
