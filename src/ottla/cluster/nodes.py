"""One node of a cluster: writes its files, formats its storage, starts its process, and explains its death.

A cluster's state and folder come in; the node with its process goes out. Nothing here waits for the whole cluster.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ottla.cluster import process
from ottla.cluster.properties import allowed_keys, node_properties, render, scram_credentials
from ottla.cluster.state import ClusterFolder, ClusterState, NodeState, private_file
from ottla.errors import LocalClusterError

_FORMAT_MAIN = "kafka.tools.StorageTool"
_BROKER_MAIN = "kafka.Kafka"
_FORMAT_HEAP_BYTES = 128 << 20
_TAIL_LINES = 10
_ERROR_LINES = 12
_READ_BYTES = 4 << 20
_RUN = "---- "
"""Prefix of the first line of every run in a log."""
_PORT_TAKEN = "Address already in use"


@dataclass(frozen=True, slots=True)
class Java:
    """How to run Kafka's classes: the executable, the class path and the environment."""

    executable: Path
    class_path: tuple[Path, ...]
    environment: Mapping[str, str]

    def command(self, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """Return the command line that runs one class."""
        return [
            str(self.executable),
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-Djava.awt.headless=true",
            "-Djava.net.preferIPv4Stack=true",
            *options,
            main,
            *arguments,
        ]

    def variables(self) -> dict[str, str]:
        """Return the environment of a JVM, with the class path: on the command line it would bury everything else."""
        return {**self.environment, "CLASSPATH": os.pathsep.join(map(str, self.class_path))}


def write_properties(state: ClusterState, node: NodeState, folder: ClusterFolder) -> None:
    """Write the node's properties file."""
    folder.create()
    folder.node(node.id).mkdir(parents=True, exist_ok=True)
    folder.log(node.id).parent.mkdir(exist_ok=True)
    properties = node_properties(state, node, data=folder.data(node.id), certificates=folder.certificates)
    with private_file(folder.properties(node.id)) as file:
        file.write(render(properties))


def format_storage(state: ClusterState, node: NodeState, folder: ClusterFolder, *, java: Java, timeout: float) -> None:
    """Format the node's storage with the cluster id, and on the first controllers with the SCRAM users.

    Raises `LocalClusterError` if it fails.
    """
    users = scram_credentials(state.users) if state.secure else []
    arguments = [
        "format",
        "-t",
        state.cluster_id,
        "-c",
        str(folder.properties(node.id)),
        "--ignore-formatted",
    ]
    for user in users:
        arguments += ["--add-scram", user]
    options = [f"-Xmx{_FORMAT_HEAP_BYTES}", "-XX:TieredStopAtLevel=1", process.marker(folder.path)]
    program, *rest = java.command(_FORMAT_MAIN, *arguments, options=options)
    # In a file: every user of the machine can read command lines, and this one contains passwords.
    arguments_file = folder.node(node.id) / "format.arguments"
    with private_file(arguments_file) as file:
        file.write("".join(f"{_quoted(argument)}\n" for argument in rest))
    try:
        result = subprocess.run(  # noqa: S603
            [program, f"@{arguments_file}"],
            env=java.variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise LocalClusterError(f"formatting the storage of broker {node.id} failed: {exc}") from exc
    finally:
        arguments_file.unlink(missing_ok=True)
    if result.returncode != 0:
        lines = "\n  ".join(result.stdout.splitlines()[-_ERROR_LINES:])
        raise LocalClusterError(f"formatting the storage of broker {node.id} failed:\n  {lines}")


def _quoted(argument: str) -> str:
    """Quote an argument as Java's launcher reads it from a file."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def launch(state: ClusterState, node: NodeState, folder: ClusterFolder, *, java: Java) -> NodeState:
    """Start the node's process and return the node with it."""
    options = [
        f"-Xmx{state.heap_bytes}",
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={folder.path / 'logs' / 'java-crash-%p.log'}",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        "-Dorg.slf4j.simpleLogger.showThreadName=false",
        *(allowed_keys(folder.certificates) if state.secure else ()),
        process.marker(folder.path),
    ]
    command = java.command(_BROKER_MAIN, str(folder.properties(node.id)), options=options)
    announce(folder.log(node.id), f"broker {node.id}")
    started = process.spawn(command, log=folder.log(node.id), environment=java.variables())
    return replace(node, process=started)


def log_tail(log: Path) -> str:
    """Return what explains the end of the newest run in a log, indented: its first error and its last lines."""
    lines = _newest_run(log)
    error = next((i for i, line in enumerate(lines) if " ERROR " in line), len(lines))
    last = max(error, len(lines) - _TAIL_LINES)
    shown = [*lines[error : min(error + _ERROR_LINES, last)], *(["..."] if last > error else []), *lines[last:]]
    return "\n".join(f"  {line}" for line in shown)


def port_was_taken(log: Path) -> bool:
    """Return whether the newest run in a log ended because one of its ports was taken."""
    return any(_PORT_TAKEN in line for line in _newest_run(log))


def _newest_run(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as exc:
        return [f"(no log: {exc})"]
    return lines[max((i for i, line in enumerate(lines) if line.startswith(_RUN)), default=0) :]


def announce(log: Path, name: str) -> None:
    """Write the first line of a new run."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{_RUN}{name} started at {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
