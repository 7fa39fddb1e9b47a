"""Pages follow the convention of CONTRIBUTING.md, as far as a look at their text can tell."""

from __future__ import annotations

import pytest
from tests.docs.pages import Commands, Program, indented_blocks, not_run, starts, steps
from tests.docs.selection import MOST_NOT_RUN, PAGES, ROOT


def _text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_run(page: str) -> None:
    steps(_text(page))
    assert list(indented_blocks(_text(page))) == [], "lines of indented code blocks: use fences"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_connects_says_how_to_start_brokers(page: str) -> None:
    taken = steps(_text(page))
    texts = [
        text
        for step in taken
        for text in (
            [script.text for script in step.scripts]
            if isinstance(step, Commands)
            else [step.source]
            if isinstance(step, Program)
            else []
        )
    ]
    if any("localhost:9092" in text for text in texts):
        assert "default" in starts(taken), "the page begins with: ottla cluster up --port 9092 --topic NAME:PARTITIONS"


def test_few_blocks_are_not_run_and_each_has_a_reason() -> None:
    marks = [(page, line, reason) for page in PAGES for line, reason in not_run(_text(page))]
    assert all(len(reason.split()) > 2 for _, _, reason in marks), marks
    assert len(marks) <= MOST_NOT_RUN, marks
