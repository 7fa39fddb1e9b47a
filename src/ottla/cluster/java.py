"""Finds the Java that runs the brokers: JAVA_HOME first, then the PATH, at least version 17.

In come the environment's values, out goes the path of an executable, or one sentence that says what to
install.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from ottla.errors import LocalClusterError

MINIMUM = 17

_ADVICE = (
    f"Kafka's brokers need Java {MINIMUM} or newer. Install it (Debian, Ubuntu: apt install openjdk-17-jre-headless;"
    " Fedora: dnf install java-17-openjdk-headless; macOS: brew install openjdk@17), or point JAVA_HOME at it"
)


def find_java(environment: Mapping[str, str]) -> Path:
    """The first Java that is new enough, in the order JAVA_HOME, PATH."""
    refused = []
    for candidate in dict.fromkeys(_candidates(environment)):
        version = _version(candidate)
        if version is not None and version >= MINIMUM:
            return candidate
        refused.append(f"{candidate} is {f'Java {version}' if version else 'not a Java that runs'}")
    found = f" ({'; '.join(refused)})" if refused else ""
    raise LocalClusterError(f"no suitable Java found{found}. {_ADVICE}")


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(found)


def _version(java: Path) -> int | None:
    """The feature version (17 of `17.0.15`, 8 of `1.8.0_292`), or None when it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None
