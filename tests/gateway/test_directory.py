"""While no broker answers, requests do not queue up for one: topics that the spool knows are taken, others refused."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import eventually

from ottla.errors import ErrorCode, OttlaError
from ottla.gateway.http.directory import Directory
from ottla.gateway.http.problems import Problem
from ottla.testing import FakeKafka

from .running import ask, gateway, port_of, post


class _Admin:
    """Brokers that answer when the test lets them, or never."""

    def __init__(self) -> None:
        self.cluster = self
        self.is_silent = False
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def deadline(self, seconds: float) -> float:
        return seconds

    def metadata(self, names: Collection[str], deadline: float) -> Any:
        self.asked += names
        self._answer()
        return SimpleNamespace(topics={name: SimpleNamespace(error=ErrorCode.none) for name in names})

    def topic_names(self, timeout: float) -> list[str]:
        self._answer()
        return ["known"]

    def close(self) -> None:
        self.may_answer.set()

    def _answer(self) -> None:
        assert self.may_answer.wait(30)
        if self.is_silent:
            raise OttlaError("nobody there")


def _directory(admin: _Admin, *kept: str) -> Directory:
    return Directory(admin, keeps=lambda topic: topic in kept)  # type: ignore[arg-type]


def _run(work: Callable[[_Admin, Directory], Any], *kept: str) -> None:
    admin = _Admin()
    directory = _directory(admin, *kept)
    try:
        asyncio.run(work(admin, directory))
    finally:
        directory.close()


async def _status(directory: Directory, topic: str) -> int:
    try:
        await directory.require(topic)
    except Problem as problem:
        return problem.status
    return 0


def test_requests_for_a_new_topic_share_one_question_also_if_the_first_client_leaves() -> None:
    async def work(admin: _Admin, directory: Directory) -> None:
        admin.may_answer.clear()
        first = asyncio.ensure_future(directory.require("new"))
        others = [asyncio.ensure_future(_status(directory, "new")) for _ in range(16)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        admin.may_answer.set()
        assert await asyncio.gather(*others) == [0] * 16
        assert admin.asked == ["new"]

    _run(work)


def test_silence_is_remembered_and_what_the_spool_knows_is_taken_without_a_question() -> None:
    async def work(admin: _Admin, directory: Directory) -> None:
        admin.is_silent = True
        assert await _status(directory, "kept") == 0
        assert not admin.asked
        assert await asyncio.gather(*(_status(directory, "new") for _ in range(16))) == [503] * 16
        assert await _status(directory, "other") == 503
        assert await _status(directory, "kept") == 0
        assert admin.asked == ["new"]

    _run(work, "kept")


def test_requests_ask_again_once_a_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.gateway.http.directory._LEAST_SECONDS", 0.01)

    async def work(admin: _Admin, directory: Directory) -> None:
        admin.is_silent = True
        directory.start()
        assert await _status(directory, "new") == 503
        admin.is_silent = False
        async with asyncio.timeout(30):
            while await _status(directory, "new"):
                await asyncio.sleep(0.01)
        assert directory.is_fresh

    _run(work)


def test_a_gateway_that_starts_without_brokers_takes_what_its_spool_can_keep(tmp_path: Path) -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        kafka.all_down()
        with gateway(kafka.bootstrap, spool=tmp_path / "new", keeps_keys=False) as running:
            assert running.ops_address is not None
            ready = ask(running.ops_address.port, "GET", "/ready")
            assert (ready.status, "knows no topic" in ready.json["missing"]["brokers"]) == (503, True)
            assert post(running, "/v1/topics/t/records?ack=spool", 1).status == 503
        (tmp_path / "known").mkdir(mode=0o700)
        (tmp_path / "known" / "topics.json").write_text(json.dumps({"t": 1}))
        with gateway(kafka.bootstrap, spool=tmp_path / "known", keeps_keys=False) as running:
            assert running.ops_address is not None
            assert ask(running.ops_address.port, "GET", "/ready").status == 200
            statuses = [post(port_of(running), "/v1/topics/t/records?ack=spool", 1).status for _ in range(5)]
            assert statuses == [202] * 5
            assert post(running, "/v1/topics/other/records?ack=spool", 1).status == 503
            kafka.all_up()
            eventually(lambda: len(kafka.records("t", 0)) == 5, "the records are delivered")
