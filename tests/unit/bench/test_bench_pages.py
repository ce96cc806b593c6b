"""Pages about benchmarks: what is in the repository is what the result files give, and changed results change them."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from bench import result_files
from bench.pages import __main__ as pages
from bench.pages.benchmarks_page import headline, page, rows_of
from bench.pages.svg import bars, lines, number
from bench.result_files import Measured


def measured(*ratios: float, target: float | None = None) -> Measured:
    rounds = [
        [
            {
                "case": "c",
                "baseline": "Spark b",
                "metric": "throughput",
                "ours": 10 * ratio,
                "theirs": 10.0,
                "ratio": ratio,
                "unit": "rows/s",
                "target": target,
            }
        ]
        for ratio in ratios
    ]
    return Measured("spark", "python -m bench spark", {"cores": "2"}, {"Python": "3"}, rounds)


@pytest.mark.parametrize("path", [str(path.relative_to(pages.ROOT)) for path in pages.files()])
def test_every_page_and_picture_is_what_the_results_give(path: str) -> None:
    expected = pages.files()[pages.ROOT / path]
    assert (pages.ROOT / path).read_text() == expected, "run: make bench-docs"


def test_a_figure_is_the_median_of_the_rounds_and_the_spread_their_range() -> None:
    (row,) = rows_of(measured(2.0, 5.0, 3.0, target=4.0))
    assert (row.ratio, row.lowest, row.highest) == (3.0, 2.0, 5.0)
    assert row.spread == "2 to 5"
    assert row.verdict == "**missed** (goal 4)"
    text, pictures = page([measured(2.0, 5.0, 3.0, target=4.0)])
    assert "Goals met: 0 of 1." in text
    assert "| c | Spark b | throughput | 30 | 10 rows/s | 3 | 2 to 5 |" in text
    assert list(pictures) == ["spark-throughput.svg"]


def test_other_results_give_another_page_and_headline() -> None:
    before, after = (page([measured(ratio)]) for ratio in (2.0, 2.5))
    assert before != after
    assert headline([measured(2.0)])[-1].endswith("| 1 | 2 | 2 | 2 |")


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    folder = tmp_path
    one = replace(measured(2.0), remark="a remark")
    result_files.write(one, folder)
    assert result_files.read(folder) == [one]


def test_pictures_are_well_formed_and_have_colours_for_both_schemes() -> None:
    drawn = bars("A & B", "ratio", [("x", 3.0, 2.0, 4.0), ("y", 0.02, 0.02, 0.02)], even=1.0)
    curves = lines("Growth", "log", {"a < b": [(10, 1.0), (1000, 50.0)], "c": [(10, 0.0), (1000, 5.0)]}, unit="s")
    for picture in (drawn, curves):
        ET.fromstring(picture)  # noqa: S314 - our own picture
        assert "prefers-color-scheme: dark" in picture


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0.1234, 12.34, 1234.0, 12_345.0, 2.5e6, 9.27e12)] == [
        "0.123",
        "12.3",
        "1,234",
        "12.3 k",
        "2.5 M",
        "9.27 T",
    ]


def test_parts_of_the_way_of_a_row_are_drawn_and_listed() -> None:
    parts = {"planning": (0.5, 0.1), "read": (-0.1, 1.0), "whole job": (0.2, 2.0)}
    figures = [
        {"case": "native scan, 10 keys", "metric": f"{part}, {process}", "value": value, "unit": "us/row"}
        for part, values in parts.items()
        for process, value in zip(("JVM", "Python"), values, strict=True)
    ]
    figures += [
        {"case": "native scan, 10 keys", "metric": f"whole job, {name} in all", "value": value, "unit": "us/row"}
        for name, value in {"JVM": 0.6, "Python": 3.1, "JVM: tasks": 0.25}.items()
    ]
    figures += [
        {"case": "native scan, 10 keys", "metric": f"{job} in all", "value": value, "unit": "us/row"}
        for job, value in {"whole job": 4.0, "job without state": 3.0}.items()
    ]
    figures += [
        {"case": "inside a subtask, 10 keys", "metric": part, "value": value, "unit": "us/row"}
        for part, value in {"fold": 0.5, "look-up": 0.25}.items()
    ]
    text, pictures = page([Measured("anatomy", "python -m bench anatomy", {}, {}, [figures])])
    assert "| reading | -0.1 | 1 |" in text
    assert "| **the whole job** | 0.6 | 3.1 |" in text
    assert "| tasks | 0.25 |" in text
    assert "| native scan, 10 keys | 3 | 4 | 0.75 |" in text
    assert "| look-up | 0.25 |" in text
    assert "| **all** | 0.75 |" in text
    assert "inside a subtask" not in pictures["anatomy.svg"]
    assert "look-up" in pictures["anatomy-subtask.svg"]
    drawn = ET.fromstring(pictures["anatomy.svg"])  # noqa: S314 - our own text
    labels = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "reading, native scan" in labels
