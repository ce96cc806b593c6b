"""Epochs and checkpoints in notebooks: escaped, with units, whatever is missing."""

from html.parser import HTMLParser

import pytest

from statebed.inspect.records import LogEntry as Recorded
from statebed.present.notebook import block, phase_bar, table
from statebed.spark import EpochSummary, OperatorSummary
from statebed.spark.api.checkpoint_list import CheckpointList

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\u202eabc", "a" * 5_000]


class Tags(HTMLParser):
    """The tags and the text of a page; refuses what is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def summary(name: str = "per_minute", batch_id: int | None = 4) -> EpochSummary:
    operator = OperatorSummary(120, 3, 5, 1_700_000_000_000_000, state_rows=30, state_bytes=2048, state_files=2)
    return EpochSummary(
        epoch=7,
        batch_id=batch_id,
        operators={name: operator},
        duration_us=450_000,
        phases_us={"read": 100, "merge": 300},
    )


def test_an_epoch_shows_its_operators_and_phases() -> None:
    page = Tags(summary()._repr_html_())
    assert "epoch 7, batch 4, 450 ms" in page.text
    assert "2023-11-14 22:13:20 UTC" in page.text
    assert "2.05 kB" in page.text
    assert {"table", "svg"} <= page.found
    assert "no batch" in Tags(summary(batch_id=None)._repr_html_()).text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_shown_as_text(name: str) -> None:
    for page in (summary(name)._repr_html_(), block(name, table([name], [[name]]), phase_bar({name: 5}))):
        shown = Tags(page)
        assert not {"script", "img"} & shown.found
        assert name in shown.text


def test_the_bar_is_as_long_as_its_parts_and_missing_without_them() -> None:
    assert phase_bar({}) == ""
    assert 'width="120.0"' in phase_bar({"read": 1, "merge": 3})
    assert 'width="360.0"' in phase_bar({"read": 1, "merge": 3})


def test_checkpoints_are_a_sequence_that_shows_itself() -> None:
    one = Recorded(
        epoch=9,
        kind="epoch",
        run=1,
        lineage="l",
        base=8,
        status="complete",
        finish_time_us=0,
        duration_us=2_000_000,
        batch=1,
        rows_in=10,
        rows_late=0,
        rows_out=1,
        watermark_us=None,
        bytes=100,
        savepoints=("before <b>",),
    )
    found = CheckpointList("rides", (one,))
    assert found[0] is one
    assert len(found) == 1
    page = Tags(found._repr_html_())
    assert "2 s" in page.text
    assert "before <b>" in page.text
