"""The picture of a job: it is XML whatever names and texts hold, boxes do not overlap, arrows lead from box to box."""

import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

from statebed.present.graph_drawing import Arrow, BoxKind, DrawnBox, drawn
from statebed.spark.api.explain import Explanation

SVG = "{http://www.w3.org/2000/svg}"
BOXES = [
    DrawnBox("bids", BoxKind.SOURCE, 0, ("event time ts", "late after 10 s")),
    DrawnBox("auctions", BoxKind.SOURCE, 0, ("event time ts", "late after 10 s")),
    DrawnBox("matched", BoxKind.OPERATOR, 1, ("interval join", "by auction")),
    DrawnBox("per_minute", BoxKind.OPERATOR, 2, ("window aggregate", "by category")),
    DrawnBox("minutes", BoxKind.SINK, 3, ("exactly once", "Parquet table at out")),
    DrawnBox("late_bids", BoxKind.SINK, 3, ("at least once",)),
]
ARROWS = [
    Arrow(0, 2),
    Arrow(1, 2),
    Arrow(2, 3, about="where price > 0 (matched.)"),
    Arrow(3, 4, is_changelog=True),
    Arrow(2, 5, "late"),
]


def parsed(picture: str) -> ET.Element:
    return ET.fromstring(picture)  # noqa: S314 - made by the code under test


def rectangles(root: ET.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of each box; the first rectangle is the card around them."""
    found = []
    for one in root.iter(f"{SVG}rect"):
        x, y, width, height = (float(one.attrib[name]) for name in ("x", "y", "width", "height"))
        found.append((x, y, x + width, y + height))
    return found


def texts(root: ET.Element) -> list[str]:
    return ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]


def test_boxes_lie_inside_the_picture_and_none_over_another() -> None:
    card, *boxes = rectangles(parsed(drawn("job rides", BOXES, ARROWS)))
    assert len(boxes) == len(BOXES)
    for left, top, right, bottom in boxes:
        assert card[0] < left < right < card[2]
        assert card[1] < top < bottom < card[3]
    for one, other in combinations(boxes, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_columns_go_from_left_to_right() -> None:
    _, *boxes = rectangles(parsed(drawn("job rides", BOXES, ARROWS)))
    lefts = [box[0] for box in boxes]
    assert lefts[0] == lefts[1] < lefts[2] < lefts[3] < lefts[4] == lefts[5]


def test_an_arrow_that_passes_a_column_runs_through_no_box() -> None:
    root = parsed(drawn("job rides", BOXES, ARROWS))
    _, *boxes = rectangles(root)
    lines = [one for one in root.iter(f"{SVG}path") if "sb-line" in one.attrib["class"]]
    straight = re.findall(r"([\d.]+) ([\d.]+) L([\d.]+) ([\d.]+)", lines[4].attrib["d"])
    assert len(straight) == 1
    left, height, right, _ = map(float, straight[0])
    passed = boxes[3]
    assert left == pytest.approx(passed[0])
    assert right == pytest.approx(passed[2], abs=0.2)
    assert not passed[1] <= height <= passed[3]


def test_what_a_changelog_is_and_what_happens_on_the_way_is_told() -> None:
    root = parsed(drawn("job rides", BOXES, ARROWS))
    lines = [one for one in root.iter(f"{SVG}path") if "sb-line" in one.attrib["class"]]
    assert ["sb-changes" in one.attrib["class"] for one in lines] == [False, False, False, True, False]
    assert [title.text for title in root.iter(f"{SVG}title")] == ["where price > 0 (matched.)"]
    assert any(text.startswith("dashed: a changelog") for text in texts(root))
    without = parsed(drawn("job rides", BOXES, ARROWS[:3]))
    assert not any(text.startswith("dashed") for text in texts(without))


@pytest.mark.parametrize("name", ["<b>&\"'", "]]>", "a\x00b\x1b", "漢字", "x" * 500, ""])
def test_names_and_texts_of_any_letters_stay_text(name: str) -> None:
    picture = drawn(f"job {name}", [DrawnBox(name, BoxKind.SOURCE, 0, (f"by {name}",))], [Arrow(0, 0, name, name)])
    root = parsed(picture)
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    assert f"job {shown}" in texts(root)
    assert shown in texts(root)
    assert not list(root.iter(f"{SVG}b"))


def test_long_texts_are_broken_into_lines_that_fit_and_cut_where_there_are_too_many() -> None:
    long = ", ".join(f"total_{number} = sum(fare_{number})" for number in range(50))
    root = parsed(drawn("job", [DrawnBox("totals", BoxKind.OPERATOR, 0, (long, "by driver"))], []))
    _, box = rectangles(root)
    assert box[2] - box[0] < 300
    lines = texts(root)
    assert lines[2].startswith("total_0 = sum(fare_0)")
    assert lines[5].endswith("…")
    assert lines[6] == "by driver"


def test_an_explanation_is_its_text_and_has_a_picture_for_notebooks() -> None:
    explanation = Explanation("job <a> & b", "<svg/>")
    assert explanation == "job <a> & b"
    assert f"{explanation}" == "job <a> & b"
    assert explanation.picture() == "<svg/>"
    assert explanation._repr_html_() == "<svg/>\n<pre>job &lt;a&gt; &amp; b</pre>"
