"""The charts of the benchmarks show what the newest results say, losses as large as gains."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from bench import plot
from bench.plot_drawing import Chart, Column, Kind, Panel, Row, axis_end, draw

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", sorted(plot.newest()))
def test_the_committed_chart_is_that_of_the_newest_result(name: str) -> None:
    result = json.loads(plot.newest()[name].read_text(encoding="utf-8"))
    committed = (plot.PLOTS / f"{name}.svg").read_text(encoding="utf-8")
    assert plot.chart(name, result) == committed, "run python -m bench plot"


def test_there_is_no_chart_without_a_result_and_each_is_in_the_report() -> None:
    assert {path.stem for path in plot.PLOTS.iterdir()} == set(plot.newest())
    report = (plot.PLOTS.parent / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(plots/(\w+)\.svg\)", report)) == set(plot.newest())


def test_every_peer_of_a_workload_is_in_its_chart() -> None:
    result = json.loads(plot.newest()["produce"].read_text(encoding="utf-8"))
    text = plot.chart("produce", result)
    ways = [row for row in result["rows"] if (row["acks"], row["codec"], row["record_bytes"]) == ("all", "none", 100)]
    assert len(ways) > 10
    for row in ways:
        assert row["variant"] in text
        assert f">{plot.number(row['records_per_second'])}</text>" in text


def test_bars_start_at_zero_and_have_the_length_of_their_value() -> None:
    assert _widths([100.0, 50.0, 25.0]) == pytest.approx([1, 0.5, 0.25], abs=0.001)


def test_among_many_a_peer_far_beyond_the_rest_is_cut_and_marked() -> None:
    values = [10.0, 11.0, 12.0, 13.0, 20.0, 1000.0]
    assert _widths(values)[-2:] == pytest.approx([1, 1], abs=0.001)
    assert _drawn(values).count('class="gap"') == 1
    assert _drawn([10.0, 20.0, 1000.0]).count('class="gap"') == 0


def test_ours_is_never_cut() -> None:
    bars: list[tuple[Kind, float | None]] = [("peer", value) for value in (1.0, 1.0, 2.0, 2.0, 3.0)]
    assert axis_end([*bars, ("ours", 1000.0)]) == 1000.0
    assert axis_end([*bars, ("peer", 1000.0)]) == 3.0


def test_the_best_is_bold_whoever_it_is_and_limits_do_not_count() -> None:
    rows = (Row("limit", "limit", (9.0,)), Row("ours", "ours", (2.0,)), Row("theirs", "peer", (3.0,)))
    root = ElementTree.fromstring(draw(_chart(rows)))
    bold = [text.text for text in root.iter(f"{SVG}text") if "best" in text.attrib["class"]]
    assert bold == ["3"]


@pytest.mark.parametrize(
    ("value", "text"), [(12_377_667, "12.4 M"), (360_600, "361 k"), (82.0, "82"), (0.345, "0.34"), (1_000, "1 k")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert plot.number(value) == text


def _chart(rows: tuple[Row, ...]) -> Chart:
    return Chart("title", "note", (Panel("panel", (Column("column", plot.whole, True),), rows),))


def _drawn(values: list[float]) -> str:
    return draw(_chart(tuple(Row(str(value), "peer", (value,)) for value in values)))


def _widths(values: list[float]) -> list[float]:
    root = ElementTree.fromstring(_drawn(values))
    widths = [float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect") if bar.attrib["class"] == "peer"][1:]
    return [width / max(widths) for width in widths]
