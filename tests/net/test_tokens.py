"""Tokens from a file and from a token endpoint: requests, reuse, and secrets that never show."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.config import OAuthBearer, Security
from ottla.errors import ConfigError, OttlaError
from ottla.net.tokens import ClientCredentials, TokenFile
from ottla.text import CONTROL

from .endpoints import Endpoint, token_endpoint

SECRET = "s3cret/ž"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with token_endpoint() as endpoint:
        yield endpoint


def credentials(endpoint: Endpoint, **more: str) -> ClientCredentials:
    return ClientCredentials(endpoint.url, "me", SECRET, **more)  # type: ignore[arg-type]


def test_a_token_is_asked_for_as_the_standard_says_and_kept(endpoint: Endpoint) -> None:
    endpoint.answer = {"access_token": "abc.def", "token_type": "Bearer", "expires_in": 3600}
    tokens = credentials(endpoint, scope="kafka read")
    assert [tokens(), tokens(), pickle.loads(pickle.dumps(tokens))()] == ["abc.def"] * 3
    ((headers, fields),) = endpoint.asked
    assert fields == {"grant_type": ["client_credentials"], "scope": ["kafka read"]}
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"me:s3cret%2F%C5%BE"


def test_a_token_without_a_lifetime_is_not_kept(endpoint: Endpoint) -> None:
    endpoint.answer = {"access_token": "abc"}
    tokens = credentials(endpoint)
    assert [tokens(), tokens()] == ["abc", "abc"]
    assert len(endpoint.asked) == 2


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (
            401,
            {"error": "invalid_client", "error_description": "no\x1b[31m\n"},
            r"answered 401: invalid_client: no\x1b[31m\n",
        ),
        (500, b"<html>", "answered 500"),
        (200, b"<html>", "gave no token"),
        (200, {"token": "abc"}, "its answer has no access_token"),
        (200, ["abc"], "its answer has no access_token"),
        (302, {}, "it redirects to http://***@evil/?token=***, which is not followed"),
    ],
)
def test_what_goes_wrong_is_said_without_the_secret(endpoint: Endpoint, status: int, answer: object, said: str) -> None:
    endpoint.status, endpoint.answer = status, answer
    endpoint.headers = {"Location": "http://a:b@evil/?token=abc"} if status == 302 else {}
    with pytest.raises(OttlaError) as caught:
        credentials(endpoint)()
    assert said in str(caught.value)
    assert not CONTROL.search(str(caught.value))
    assert SECRET not in str(caught.value)


def test_an_endpoint_that_is_away(endpoint: Endpoint) -> None:
    with pytest.raises(OttlaError, match="cannot be reached"):
        ClientCredentials("http://127.0.0.1:1/token", "me", SECRET)()


@pytest.mark.parametrize(
    "url", ["", "idp", "ftp://idp", "https://", "https://u:s3cret@idp/", "https://idp:x/", "http://idp/t"]
)
def test_an_endpoint_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="the token endpoint") as caught:
        ClientCredentials(url, "me", SECRET)
    assert "s3cret" not in str(caught.value)


def test_secrets_do_not_show(endpoint: Endpoint) -> None:
    security = Security(sasl=OAuthBearer(credentials(endpoint), extensions=(("a", "s3cret"),)))
    assert "s3cret" not in repr(security) + repr(credentials(endpoint))
    assert security.exposed == "token"
    assert pickle.loads(pickle.dumps(security)) == security


def test_a_token_file_is_read_again_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc\n")
    tokens = TokenFile(file)
    assert tokens() == "abc"
    file.write_text("def")
    assert tokens() == "def"
    file.unlink()
    with pytest.raises(OttlaError, match="cannot be read: No such file"):
        tokens()
