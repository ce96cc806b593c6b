"""Contents of drawings: values at their place, units, texts of others as text, and bounds."""

import re
import xml.etree.ElementTree as ET

import pytest

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.lineages import LineageSummary, RunSummary
from statebed.inspect.savepoints import SavepointSummary
from statebed.ui.charts import Chart, ChartShape, Series, Unit
from statebed.ui.coverage import SPACE, key_coverage, time_coverage
from statebed.ui.history import History
from statebed.ui.job_graph import graph_of
from statebed.ui.points import StateTotals

HOSTILE = "<script>alert('x')</script>\"&\u202e" + "long" * 60


def elements(svg: str, tag: str) -> list[ET.Element]:
    """Parsed as XML, so what is not well formed fails here."""
    return list(ET.fromstring(svg).iter(tag))  # noqa: S314 - our own text


def texts(svg: str) -> list[str]:
    return ["".join(one.itertext()) for one in elements(svg, "text")]


def bars(svg: str) -> list[list[tuple[float, float]]]:
    """Top and height of the bars of each series."""
    paths = [one.attrib["d"] for one in elements(svg, "path") if "fill" in one.attrib["class"]]
    return [[(float(y), float(tall)) for y, tall in re.findall(r"M[\d.]+ ([\d.]+)h[\d.]+v([\d.]+)", d)] for d in paths]


def chart(
    *series: Series, unit: Unit = Unit.BYTES, shape: ChartShape = ChartShape.LINES, limit: float | None = None
) -> Chart:
    count = len(series[0].values)
    return Chart("c", "Sizes", "about", tuple(range(1, count + 1)), series, unit, shape, limit, "budget")


def test_bars_stand_on_each_other_and_tell_their_sum() -> None:
    made = chart(Series("a", (100.0, 300.0), 1), Series("b", (200.0, None), 2), shape=ChartShape.BARS).drawn("/e")
    (a, c), (b,) = bars(made)
    assert b[0] + b[1] == pytest.approx(a[0], abs=0.02)
    assert c[1] == pytest.approx(a[1] + b[1], abs=0.02)
    titles = [one.text for one in elements(made, "title")]
    assert titles == ["epoch 1\na: 100 B\nb: 200 B\ntogether: 300 B", "epoch 2\na: 300 B"]
    assert [one.attrib["href"] for one in elements(made, "a")] == ["/e/1", "/e/2"]


def test_a_line_is_interrupted_where_nothing_is_known() -> None:
    made = chart(Series("a", (1.0, None, 2.0, 3.0), 1)).drawn("/e")
    [path] = elements(made, "path")
    assert path.attrib["d"].count("M") == 2
    assert path.attrib["d"].count("L") == 1


@pytest.mark.parametrize(
    ("unit", "greatest", "labels"),
    [
        (Unit.COUNT, 2.0, ["0", "1", "2"]),
        (Unit.BYTES, 2_900_000.0, ["0 B", "1 MB", "2 MB", "3 MB"]),
        (Unit.DURATION, 95_000_000.0, ["0 s", "1 min", "2 min"]),
        (Unit.DURATION, 700_000.0, ["0 s", "250 ms", "500 ms", "750 ms"]),
        (Unit.DURATION, 86_400e6 * 318, ["0 s", "200 d", "400 d"]),
        (Unit.COUNT, 0.0, ["0", "1"]),
    ],
)
def test_axes_have_round_numbers_with_units(unit: Unit, greatest: float, labels: list[str]) -> None:
    made = chart(Series("a", (0.0, greatest), 1), unit=unit).drawn("/e")
    assert texts(made)[: len(labels)] == labels


def test_one_bar_that_is_far_above_all_others_is_cut_and_told() -> None:
    made = chart(Series("a", (30e6, *[1e6] * 9), 1), unit=Unit.DURATION, shape=ChartShape.BARS).drawn("/e")
    [heights] = [[tall for _, tall in some] for some in bars(made)]
    assert heights[1] > heights[0] / 4
    assert len([one for one in elements(made, "path") if one.attrib["class"] == "gap"]) == 1
    assert "30 s" in texts(made)


def test_a_budget_above_all_values_is_inside_the_plot() -> None:
    made = chart(Series("a", (1.0, 2.0), 1), limit=90.0).drawn("/e")
    [line] = [one for one in elements(made, "line") if one.attrib["class"] == "limit"]
    assert 0 < float(line.attrib["y1"]) < 148
    assert "budget 90 B" in texts(made)


def test_a_graph_has_an_arrow_for_everything_that_is_read() -> None:
    record = pb.CheckpointMetadata(
        sources=[pb.SourceWatermark(source="rides")],
        operators=[
            pb.OperatorEntry(operator_id="sums", inputs=[pb.InputWatermark(input="input", origins=["rides"])]),
            pb.OperatorEntry(operator_id="best", inputs=[pb.InputWatermark(input="input", origins=["sums"])]),
            pb.OperatorEntry(operator_id="old", retired=True),
        ],
        sinks=[pb.SinkEntry(sink_id="out", operator_id="best"), pb.SinkEntry(sink_id="both", stream="for_both")],
        outbox=[
            pb.OutboxFile(operator_id="sums", stream="for_both"),
            pb.OutboxFile(operator_id="best", stream="for_both"),
        ],
    )
    graph = graph_of(record, {"sums": StateTotals(memory_bytes=1, store_bytes=3, files=1)}, "/ops")
    assert [(box.name, box.reads) for box in graph.boxes] == [
        ("rides", ()),
        ("sums", ("s:rides",)),
        ("best", ("o:sums",)),
        ("out", ("o:best",)),
        ("both", ("o:best", "o:sums")),
    ]
    made = graph.drawn()
    assert len([one for one in elements(made, "path") if one.attrib["class"] == "arrow"]) == 5
    assert [one.attrib["href"] for one in elements(made, "a")] == ["/ops/sums", "/ops/best"]


def test_an_arrow_that_passes_a_column_runs_through_no_box() -> None:
    record = pb.CheckpointMetadata(
        operators=[
            pb.OperatorEntry(operator_id="sums", inputs=[pb.InputWatermark(input="input")]),
            pb.OperatorEntry(operator_id="best", inputs=[pb.InputWatermark(input="input", origins=["sums"])]),
            pb.OperatorEntry(
                operator_id="joined",
                inputs=[
                    pb.InputWatermark(input="left", origins=["best"]),
                    pb.InputWatermark(input="right", origins=["sums"]),
                ],
            ),
        ]
    )
    made = graph_of(record, {}, "/ops").drawn()
    boxes = {
        "".join(group.find("text").itertext()): group.find("rect").attrib  # type: ignore[union-attr]
        for group in elements(made, "g")
    }
    arrows = [one.attrib["d"] for one in elements(made, "path") if one.attrib["class"] == "arrow"]
    [(left, height, right)] = [
        tuple(map(float, lane)) for path in arrows for lane in re.findall(r"([\d.]+) ([\d.]+) L([\d.]+)", path)
    ]
    x, y, width, tall = (float(boxes["best"][name]) for name in ("x", "y", "width", "height"))
    assert (left, right) == pytest.approx((x, x + width), abs=0.2)
    assert not y <= height <= y + tall


def test_a_record_that_does_not_tell_what_is_read_still_has_a_graph() -> None:
    one = pb.OperatorEntry(operator_id="sums", inputs=[pb.InputWatermark(input="bids")])
    graph = graph_of(pb.CheckpointMetadata(operators=[one]), {}, "/ops")
    assert [(box.name, box.reads) for box in graph.boxes] == [("bids", ()), ("sums", ("s:bids",))]
    assert graph_of(pb.CheckpointMetadata(), {}, "/ops").drawn()


def test_operators_that_read_each_other_do_not_hang_the_drawing() -> None:
    both = [
        pb.OperatorEntry(operator_id=one, inputs=[pb.InputWatermark(input="input", origins=[other])])
        for one, other in (("a", "b"), ("b", "a"))
    ]
    assert len(elements(graph_of(pb.CheckpointMetadata(operators=both), {}, "/ops").drawn(), "a")) == 2


def test_texts_of_others_are_text_in_every_drawing() -> None:
    record = pb.CheckpointMetadata(
        sources=[pb.SourceWatermark(source=HOSTILE)],
        operators=[pb.OperatorEntry(operator_id=HOSTILE, definition='{"kind": "<b>"}')],
        sinks=[pb.SinkEntry(sink_id=HOSTILE, operator_id=HOSTILE)],
    )
    drawn = [
        graph_of(record, {}, "/ops").drawn(),
        chart(Series(HOSTILE, (1.0,), 1)).drawn("/e"),
        History((), (), (), "/e").drawn(),
        key_coverage([pb.FileEntry(path=HOSTILE, max_key_hash=5)], [pb.HashRange()]).drawn(),  # type: ignore[union-attr]
    ]
    for svg in drawn:
        assert "<script" not in svg
        assert not elements(svg, "script")
        assert not elements(svg, "b")
    assert max(len(text) for text in texts(drawn[0])) <= 34


def file(first: float, last: float, level: int = 0, times: tuple[int, int] | None = None) -> pb.FileEntry:
    return pb.FileEntry(
        path=f"f{first}",
        level=level,
        owned=pb.HashRange(first=0, last=SPACE - 1),
        min_key_hash=int(first * SPACE),
        max_key_hash=min(int(last * SPACE), SPACE - 1),
        min_time_us=times[0] if times else None,
        max_time_us=times[1] if times else None,
    )


def test_coverage_counts_the_files_over_each_part_of_the_space() -> None:
    halves = [pb.HashRange(first=0, last=SPACE // 2 - 1), pb.HashRange(first=SPACE // 2, last=SPACE - 1)]
    found = key_coverage([file(0.0, 1.0, 1), file(0.0, 0.25), file(0.2, 0.3)], halves)
    assert found is not None
    assert found.edges == (0.5,)
    assert found.counts[0] == {1: 1, 0: 1}
    assert found.counts[26] == {1: 1, 0: 2}
    assert found.counts[100] == {1: 1}
    assert found.deepest == 3
    assert len(re.findall("hit-bar", found.drawn())) == 3


def test_thousands_of_files_are_drawn_as_their_number_alone() -> None:
    found = key_coverage([file(number / 5000, number / 5000 + 0.1) for number in range(4500)], [])
    assert found is not None
    assert found.deepest > 400
    assert "hit-bar" not in found.drawn()
    assert len(found.drawn()) < 60_000


def test_a_table_without_hashes_or_with_one_time_has_no_coverage() -> None:
    assert key_coverage([pb.FileEntry(path="f")], []) is None
    assert time_coverage([file(0, 1, times=(5, 5))]) is None
    timed = time_coverage([file(0, 1, times=(0, 60_000_000))])
    assert timed is not None
    assert (timed.start, timed.end) == ("1970-01-01 00:00:00", "1970-01-01 00:01:00")


def test_a_fork_is_drawn_from_the_epoch_it_began_at() -> None:
    def run(number: int, last: int, lineage: str, base: int) -> RunSummary:
        return RunSummary(number, lineage, base, number + 1, last, 0, 0, "complete", None)

    def lineage(name: str, status: str, base: int, kept: int | None) -> LineageSummary:
        return LineageSummary(name, status, base, kept, 1, 1, 9, 0, 0, None)

    history = History(
        (run(1, 10, "1", 0), run(11, 20, "11", 5)),
        (lineage("1", "abandoned", 0, 5), lineage("11", "current", 5, 20)),
        (SavepointSummary("before", 4, "1", 0, None, None),),
        "/e",
    )
    made = history.drawn()
    runs = elements(made, "rect")
    assert [one.attrib["class"] for one in runs] == ["run kept", "run left", "run kept"]
    [fork] = [one for one in elements(made, "path") if one.attrib["class"] == "fork"]
    left_behind = float(runs[1].attrib["x"])
    assert float(fork.attrib["d"].split()[0][1:]) == pytest.approx(left_behind, abs=0.1)
    assert [one.attrib["href"] for one in elements(made, "a")] == ["/e/1", "/e/6", "/e/11", "/e/4"]
