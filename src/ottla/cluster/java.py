"""Finds the Java that runs the brokers: JAVA_HOME first, then PATH, at least version 17.

The environment comes in; the path of an executable goes out, or an error that says what to install.
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
    """Return the first Java that is new enough, from JAVA_HOME or PATH.

    Raises `LocalClusterError` if there is none.
    """
    refused = []
    for candidate in dict.fromkeys(_candidates(environment)):
        version = _version(candidate)
        if version is not None and version >= MINIMUM:
            return candidate
        refused.append(f"{candidate} is {f'Java {version}' if version else 'not a working Java'}")
    reasons = f" ({'; '.join(refused)})" if refused else ""
    raise LocalClusterError(f"no suitable Java found{reasons}. {_ADVICE}")


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if executable := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(executable)


def _version(java: Path) -> int | None:
    """Return the feature version (17 of `17.0.15`, 8 of `1.8.0_292`), or None if it does not run."""
    try:
        output = subprocess.run(  # noqa: S603
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output.stderr + output.stdout)
    return int(match[1]) if match else None
