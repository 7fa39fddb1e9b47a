"""The page about fleets names every setting as the code has it."""

from __future__ import annotations

from . import settings_table


def test_the_table_of_settings_is_that_of_the_code() -> None:
    assert settings_table.written() == settings_table.table(), "run python -m tests.engines.fleet.settings_table"
