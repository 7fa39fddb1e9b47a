"""Downloading jars: broken downloads, a shared cache, and processes that start at the same time."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cluster import jars
from ottla.cluster.jars import JarCache
from ottla.cluster.pinned import DEFAULT_VERSION, Jar, pinned_jars, versions
from ottla.config import Retry
from ottla.errors import ConfigError, LocalClusterError

from .conftest import Repository


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_BACKOFF", Retry(initial=0.01, maximum=0.01))
    monkeypatch.setattr(jars, "_READ_TIMEOUT", 0.3)


def _content(cache: JarCache) -> list[bytes]:
    return [(cache.directory / jar.file).read_bytes() for jar in cache.jars]


def test_every_pinned_version_lists_the_broker_and_its_tools() -> None:
    for version in versions():
        names = {jar.coordinates.split(":")[1] for jar in pinned_jars(version)}
        assert {"kafka_2.13", "kafka-tools", "kafka-clients", "slf4j-simple", "snappy-java", "zstd-jni"} <= names
        assert all(len(jar.sha256) == 64 and jar.size_bytes > 0 for jar in pinned_jars(version))
    assert versions()[0] == DEFAULT_VERSION


def test_an_unknown_version_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'0\.8\.2' is not one of 4\.3\.1, 3\.9\.2"):
        pinned_jars("0.8.2")


def test_coordinates_give_the_path_in_a_repository() -> None:
    jar = Jar("org.apache.kafka:kafka-clients:4.3.1", "", 0)
    assert jar.path == "org/apache/kafka/kafka-clients/4.3.1/kafka-clients-4.3.1.jar"


@pytest.mark.parametrize("fault", ["altered", "half", "503", "silent"])
def test_a_broken_download_is_noticed_and_fetched_again(tmp_path: Path, repository: Repository, fault: str) -> None:
    jar = repository.add("one", b"x" * 300_000, fault)
    cache = JarCache(tmp_path, (jar,))
    cache.ensure(base_url=repository.url)
    assert _content(cache) == [b"x" * 300_000]
    assert repository.requests[f"/{jar.path}"] == 2


def test_a_download_that_stays_wrong_names_file_url_and_both_sums(tmp_path: Path, repository: Repository) -> None:
    jar = repository.add("one", b"x" * 1000, *["altered"] * 9)
    with pytest.raises(LocalClusterError) as caught:
        JarCache(tmp_path, (jar,)).ensure(base_url=repository.url)
    text = str(caught.value)
    assert jar.file in text
    assert f"{repository.url}/{jar.path}" in text
    assert jar.sha256 in text
    assert "its SHA-256 is" in text
    assert not (tmp_path / jar.file).exists()
    assert list(tmp_path.glob("*.part")) == []


def test_a_jar_that_is_not_there_is_not_asked_for_again(tmp_path: Path, repository: Repository) -> None:
    jar = Jar("org.example:absent:1.0", "0" * 64, 10)
    with pytest.raises(LocalClusterError, match="404"):
        JarCache(tmp_path, (jar,)).ensure(base_url=repository.url)
    assert repository.requests[f"/{jar.path}"] == 1


def test_a_file_longer_than_the_pinned_size_is_refused(tmp_path: Path, repository: Repository) -> None:
    jar = repository.add("one", b"x" * 1000)
    short = Jar(jar.coordinates, jar.sha256, 10)
    with pytest.raises(LocalClusterError, match="longer than the pinned 10 bytes"):
        JarCache(tmp_path, (short,)).ensure(base_url=repository.url)


def test_a_warm_cache_needs_no_request(tmp_path: Path, repository: Repository) -> None:
    cache = JarCache(tmp_path, (repository.add("one", b"abc"), repository.add("two", b"def")))
    cache.ensure(base_url=repository.url)
    cache.ensure(base_url=repository.url)
    assert sum(repository.requests.values()) == 2


def test_a_truncated_or_missing_jar_in_the_cache_is_fetched_again(tmp_path: Path, repository: Repository) -> None:
    first, second, third = (repository.add(name, name.encode() * 100) for name in ("one", "two", "three"))
    cache = JarCache(tmp_path, (first, second, third))
    cache.ensure(base_url=repository.url)
    (tmp_path / first.file).write_bytes(b"one")
    (tmp_path / second.file).unlink()
    cache.ensure(base_url=repository.url)
    assert _content(cache) == [b"one" * 100, b"two" * 100, b"three" * 100]
    assert repository.requests == {f"/{first.path}": 2, f"/{second.path}": 2, f"/{third.path}": 1}


def test_an_altered_jar_of_the_right_size_is_fetched_again(tmp_path: Path, repository: Repository) -> None:
    cache = JarCache(tmp_path, (repository.add("one", b"abc"),))
    (path,) = cache.ensure(base_url=repository.url)
    path.write_bytes(b"abd")
    cache.ensure(base_url=repository.url)
    assert path.read_bytes() == b"abc"


def test_a_complete_cache_needs_neither_a_lock_nor_a_repository(tmp_path: Path, repository: Repository) -> None:
    cache = JarCache(tmp_path, (repository.add("one", b"abc"),))
    (tmp_path / cache.jars[0].file).write_bytes(b"abc")
    cache.ensure(base_url="not even looked at")
    assert [path.name for path in tmp_path.iterdir()] == [cache.jars[0].file]


def test_a_full_disk_is_reported_at_once_and_not_blamed_on_the_repository(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_space(*_: object) -> list[int]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    jar = repository.add("one", b"abc")
    for name, replacement in (("_Fetch._download", no_space), ("Path.replace", no_room)):
        with monkeypatch.context() as patch:
            patch.setattr(f"ottla.cluster.jars.{name}", replacement)
            with pytest.raises(
                LocalClusterError, match=r"cannot write to the jar cache .*No space left.*choose another"
            ):
                JarCache(tmp_path, (jar,)).ensure(base_url=repository.url)
    assert repository.requests[f"/{jar.path}"] <= 1
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_repository_that_is_away_is_mentioned_once_and_named_in_the_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jars = tuple(Jar(f"org.example:jar{number}:1.0", "0" * 64, 10) for number in range(10))
    with (
        caplog.at_level("INFO", logger="ottla.cluster"),
        pytest.raises(LocalClusterError, match=r"in 4 attempts: .*refused"),
    ):
        JarCache(tmp_path, jars).ensure(base_url="http://127.0.0.1:1")
    assert sum("attempt" in record.getMessage() for record in caplog.records) == 1


def test_a_new_pinned_list_is_checked_although_the_old_one_was_complete(tmp_path: Path, repository: Repository) -> None:
    old, new = repository.add("one", b"abc"), repository.add("two", b"def")
    JarCache(tmp_path, (old,)).ensure(base_url=repository.url)
    JarCache(tmp_path, (old, new)).ensure(base_url=repository.url)
    assert repository.requests[f"/{old.path}"] == 1
    assert (tmp_path / new.file).read_bytes() == b"def"


def test_progress_ends_at_the_total_also_after_a_retry(tmp_path: Path, repository: Repository) -> None:
    seen: list[tuple[int, int]] = []
    cache = JarCache(tmp_path, (repository.add("one", b"x" * 5000, "half"), repository.add("two", b"y" * 700)))
    cache.ensure(base_url=repository.url, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (5700, 5700)
    assert all(done <= total for done, total in seen)


@pytest.mark.parametrize("url", ["file:///etc", "http://", "http://a b/", "http://a:port/", "http://[::1"])
def test_only_http_repositories_are_accepted(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="not an http or https URL"):
        JarCache(tmp_path, (Jar("a:b:1", "", 1),)).ensure(base_url=url)


_FETCH = """
import logging, sys
from pathlib import Path
from ottla.cluster.jars import JarCache
from ottla.cluster.pinned import Jar
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
directory, url, coordinates, sha256, size = sys.argv[1:]
(path,) = JarCache(Path(directory), (Jar(coordinates, sha256, int(size)),)).ensure(base_url=url)
print(path.stat().st_size)
"""


def test_of_two_processes_one_fetches_and_the_other_waits_and_says_so(tmp_path: Path, repository: Repository) -> None:
    jar = repository.add("one", b"x" * 1000)
    repository.delay = 1.5
    arguments = [str(tmp_path), repository.url, jar.coordinates, jar.sha256, str(jar.size_bytes)]
    pair = [
        subprocess.Popen([sys.executable, "-c", _FETCH, *arguments], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert repository.requests[f"/{jar.path}"] == 1
    assert all(text.splitlines()[-1] == "1000" for text in outputs)
    assert sum("waiting for it" in text for text in outputs) == 1


def test_a_mirror_with_a_password_is_used_and_its_password_is_never_shown(
    tmp_path: Path, repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    url = repository.url.replace("http://", "http://me:s3cr%2Fet@")
    jar = repository.add("a", b"content", "401")
    cache = JarCache(tmp_path, (jar,))
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(LocalClusterError, match=r"http://\*\*\*@127.* answered 401") as no,
    ):
        cache.ensure(base_url=url)
    cache.ensure(base_url=url)
    assert _content(cache) == [b"content"]
    assert repository.logins == ["me:s3cr/et"] * 2
    for text in (str(no.value), *(record.getMessage() for record in caplog.records)):
        assert "s3cr" not in text
    with pytest.raises(ConfigError, match=r"'ftp://\*\*\*@h/'"):
        JarCache(tmp_path / "other", (jar,)).ensure(base_url="ftp://me:s3cr@h/")
