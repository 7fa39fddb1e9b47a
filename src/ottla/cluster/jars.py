"""The jars of Apache Kafka: a pinned list per version, downloaded once into a cache that all clusters share.

A version and a cache folder come in; the class path goes out. A jar enters the cache only with the size and SHA-256 of
the list, under a lock that a second process waits for. Every checksum is verified again before every use (56 MB in less
than 0.1 s). This module knows nothing about brokers and does not read the environment.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import http.client
import logging
import random
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ottla.cluster.pinned import Jar, pinned_jars
from ottla.config import Retry
from ottla.errors import Advice, ConfigError, LocalClusterError
from ottla.text import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the bytes downloaded so far and the total, on the caller's thread."""

_ATTEMPTS = 4
_BACKOFF = Retry(initial=0.5, maximum=8.0)
_THREADS = 6
_READ_TIMEOUT = 30.0
"""Seconds without a byte after which a download fails."""
_FILE_TIMEOUT = 600.0
"""Seconds for one attempt at one file, however steadily it trickles."""
_LOCK_TIMEOUT = 1800.0
"""Seconds to wait for another process that downloads the same jars."""
_CHUNK_BYTES = 1 << 16
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""Errors of the cache's file system, which a retry would only repeat."""


def maven_central() -> str:
    """Return the base URL of Maven Central, from the jgo package."""
    from jgo.constants import MAVEN_CENTRAL_URL

    return str(MAVEN_CENTRAL_URL)


def ensure_jars(
    version: str,
    cache_dir: Path,
    *,
    base_url: str | None = None,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Return the jars of a Kafka version; download those that are missing or damaged.

    `base_url` is a mirror to use instead of Maven Central. Raises `ConfigError` for an unknown version or an invalid
    URL, and `LocalClusterError` if a download fails.
    """
    return JarCache(cache_dir / f"kafka-{version}", pinned_jars(version)).ensure(base_url=base_url, progress=progress)


@dataclass(frozen=True, slots=True)
class JarCache:
    """A folder with the jars of one pinned list, or some of them."""

    directory: Path
    jars: tuple[Jar, ...]

    def ensure(self, *, base_url: str | None = None, progress: Progress | None = None) -> tuple[Path, ...]:
        """Return the class path; first download what is missing, truncated or altered."""
        if self._broken():
            base = _checked_url(base_url or maven_central())
            with self._locked():
                if broken := self._broken():  # The process that held the lock may have downloaded them.
                    _Fetch(self.directory, base, broken).run(progress)
        return tuple(self.directory / jar.file for jar in self.jars)

    def _broken(self) -> list[Jar]:
        return [jar for jar in self.jars if _fault(self.directory / jar.file, jar) is not None]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.directory / "lock")
            self._acquire(lock)
            try:
                yield
            finally:
                lock.release()
        except OSError as exc:
            raise LocalClusterError(
                f"cannot write to the jar cache {self.directory} ({exc}): {Advice.JAR_CACHE}"
            ) from exc

    def _acquire(self, lock: FileLock) -> None:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info("another process is downloading Kafka's jars into %s: waiting for it", self.directory)
            try:
                lock.acquire(timeout=_LOCK_TIMEOUT)
            except Timeout as exc:
                raise LocalClusterError(
                    f"{lock.lock_file} is still locked after {_LOCK_TIMEOUT:.0f} s: look for the process that holds it"
                ) from exc


@dataclass(slots=True)
class _Fetch:
    """One round of downloads: a few threads, one byte count, stopped as a whole by the first failure."""

    directory: Path
    base_url: str
    jars: list[Jar]
    done_bytes: int = 0
    failures: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, progress: Progress | None) -> None:
        total = sum(jar.size_bytes for jar in self.jars)
        logger.info("downloading %d jars, %d bytes, from %s", len(self.jars), total, redacted(self.base_url))
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="ottla-jars") as pool:
            try:
                pending = {pool.submit(self._fetch, jar) for jar in self.jars}
                while pending:
                    finished, pending = wait(pending, timeout=0.2, return_when=FIRST_EXCEPTION)
                    for future in finished:
                        future.result()
                    if progress is not None:
                        progress(self.done_bytes, total)
            finally:
                self.stop.set()
                pool.shutdown(cancel_futures=True)

    def _fetch(self, jar: Jar) -> None:
        url = f"{self.base_url}/{jar.path}"
        target = self.directory / jar.file
        part = target.with_suffix(".part")
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                fault = self._attempt(url, part, jar)
                if fault is None:
                    part.replace(target)
                    return
                self._report(f"{redacted(url)}, attempt {attempt} of {_ATTEMPTS}: {fault}")
                if attempt < _ATTEMPTS and self.stop.wait(_BACKOFF.wait(attempt, random.random())):
                    raise LocalClusterError(f"{jar.file}: the download was cancelled")
            raise LocalClusterError(
                f"could not download {jar.file} from {redacted(url)} in {_ATTEMPTS} attempts: {fault}"
            )
        finally:
            part.unlink(missing_ok=True)

    def _attempt(self, url: str, part: Path, jar: Jar) -> str | None:
        """Return what went wrong, or None if the file is complete."""
        counted_bytes = 0
        try:
            for size in self._download(url, part, jar):
                counted_bytes += size
                self._count(size)
            fault = _fault(part, jar)
        except urllib.error.HTTPError as exc:
            exc.close()
            if exc.code in (401, 403, 404, 407):
                raise LocalClusterError(f"{jar.file}: {redacted(url)} answered {exc.code} {exc.reason}") from exc
            fault = f"HTTP {exc.code} {exc.reason}"
        except (OSError, http.client.HTTPException) as exc:
            if isinstance(exc, OSError) and exc.errno in _DISK_ERRORS:
                raise
            fault = f"{type(exc).__name__}: {exc}"
        if fault is not None:
            self._count(-counted_bytes)
        return fault

    def _download(self, url: str, part: Path, jar: Jar) -> Iterable[int]:
        deadline = time.monotonic() + _FILE_TIMEOUT
        with urllib.request.urlopen(_request(url), timeout=_READ_TIMEOUT) as response, part.open("wb") as out:  # noqa: S310
            size = 0
            while chunk := response.read(_CHUNK_BYTES):
                size += len(chunk)
                if self.stop.is_set():
                    raise LocalClusterError(f"{jar.file}: the download was cancelled")
                if size > jar.size_bytes:
                    raise OSError(f"longer than the pinned {jar.size_bytes} bytes")
                if time.monotonic() > deadline:
                    raise OSError(f"{size} of {jar.size_bytes} bytes after {_FILE_TIMEOUT:.0f} s")
                out.write(chunk)
                yield len(chunk)

    def _report(self, failure: str) -> None:
        """Log the first failure as a warning: if a mirror is down, all threads get the same one repeatedly."""
        with self.lock:
            self.failures += 1
            logger.log(logging.WARNING if self.failures == 1 else logging.DEBUG, "%s", failure)

    def _count(self, size: int) -> None:
        with self.lock:
            self.done_bytes += size


def _checked_url(base_url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # A port that is not a number, or an IPv6 address without brackets.
        usable = False
    if not usable or any(char.isspace() for char in base_url):
        raise ConfigError(f"the Maven repository {redacted(base_url)!r} is not an http or https URL")
    return base_url.rstrip("/")


def _request(url: str) -> urllib.request.Request:
    """Put user and password into a header that is not sent on to the target of a redirect."""
    parts = urllib.parse.urlsplit(url)
    credentials, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl())  # noqa: S310
    if credentials:
        user, _, password = credentials.partition(":")
        pair = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password)}"
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    return request


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _fault(path: Path, jar: Jar) -> str | None:
    """Return why this file is not that jar, or None."""
    size = _size(path)
    if size != jar.size_bytes:
        return f"it has {max(size, 0)} bytes instead of {jar.size_bytes}"
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        return f"cannot read it: {exc}"
    return None if digest == jar.sha256 else f"its SHA-256 is {digest} instead of {jar.sha256}"
