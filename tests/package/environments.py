"""Environments as a stranger has them: the wheel of this checkout and the packages that it asks for, nothing else.

Wheels of other packages come from uv's cache, in the versions of `uv.lock`: nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Kernels that `make warm` has compiled from the same sources: a new environment would compile them for itself.
KERNELS = ROOT / "src/ottla/wire/kernels/__pycache__"


@dataclass(frozen=True, slots=True)
class Environment:
    """Python with the wheel in it, in a folder outside of the checkout."""

    folder: Path

    def run(self, *command: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment, `python` or `ottla`, with nothing of this process but its path and home."""
        kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "XDG_CACHE_HOME") if name in os.environ}
        path = f"{self.folder / 'venv/bin'}:{os.environ['PATH']}"
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self.folder,
            env={
                **kept,
                "PATH": path,
                "XDG_STATE_HOME": str(self.folder / "state"),
                "NUMBA_CACHE_DIR": str(KERNELS),
                **variables,
            },
        )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    _succeed([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)])
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel without extras."""
    return installed(wheel, tmp_path_factory.mktemp("bare"), [])


@pytest.fixture(scope="module")
def with_cluster(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """The wheel with the extra `cluster`."""
    environment = installed(wheel, tmp_path_factory.mktemp("cluster"), ["cluster"])
    yield environment
    environment.run("ottla", "cluster", "down", "--name", "stranger", "--yes")


def installed(wheel: Path, folder: Path, extras: Sequence[str]) -> Environment:
    """Make an environment: dependencies as locked, then the wheel."""
    venv = folder / "venv"
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    named = [word for extra in extras for word in ("--extra", extra)]
    locked = ["sync", "--locked", "--offline", "--no-default-groups", "--no-install-project", *named]
    _succeed([uv, *locked, "--python", sys.executable], UV_PROJECT_ENVIRONMENT=str(venv))
    _succeed([uv, "pip", "install", "--offline", "--no-deps", "--python", str(venv), str(wheel)])
    _succeed([uv, "pip", "check", "--python", str(venv)])
    return Environment(folder)


def add(environment: Environment, package: str) -> None:
    """Install a package from the registry, as `pip install` would, in the version of this environment."""
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    python = str(environment.folder / "venv")
    _succeed([uv, "pip", "install", "--python", python, f"{package}=={version(package)}"])


def _succeed(command: Sequence[str], **variables: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
