"""Keys and values of text, short and long, are found, merged, stored and restored as a dict would keep them."""

import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Tiers, keyed_table_config
from statebed.state.memory.controller import MemoryController
from statebed.storage import MemoryStore

CONFIG = keyed_table_config(
    "notes", "", ["name"], pa.schema([("name", pa.string()), ("note", pa.string()), ("count", pa.int64())])
)
SHORT, LONG = 12, 70


@pytest.fixture(params=[1 << 18, 1 << 30], ids=["spilling", "in memory"])
def tiers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(request.param), folder=tmp_path)
    yield made
    made.close()


def text(random: np.random.Generator, longest: int) -> str | None:
    if random.random() < 0.01:
        return None
    letters = random.choice(list(string.ascii_lowercase[:4]), int(random.integers(0, longest)))
    return "".join(letters)


def contents(view: KeyedView) -> dict[str | None, tuple[str | None, int]]:
    return {row["name"]: (row["note"], row["count"]) for part in view.scan() for row in part.to_pylist()}


@pytest.mark.parametrize("lengths", [(SHORT, SHORT), (SHORT, LONG), (LONG, SHORT)], ids=str)
def test_text_of_any_length_is_kept_as_a_dict_keeps_it(lengths: tuple[int, int], tiers: Tiers) -> None:
    store = MemoryStore("notes")
    view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, tiers=tiers)
    random = np.random.default_rng(11)
    expected: dict[str | None, tuple[str | None, int]] = {}
    for step in range(12):
        # From one step on keys are of another length, and values a little later.
        names = [text(random, lengths[step > 4]) for _ in range(150)]
        notes = [text(random, lengths[step > 7]) for _ in names]
        rows = pa.table([names, notes, [step] * len(names)], schema=view.table.columns.remove_metadata())
        view.upsert(rows.select(["name"]), rows.select(["note", "count"]))
        expected |= {name: (note, step) for name, note in zip(names, notes, strict=True)}
        gone = names[::7]
        view.delete(pa.table({"name": pa.array(gone, pa.string())}))
        for name in gone:
            expected.pop(name, None)
        asked = [*expected, "nobody", "n" * 60]
        values, found = view.get(pa.table({"name": pa.array(asked, pa.string())}))
        assert found.tolist() == [name in expected for name in asked]
        assert values["note"].to_pylist()[:-2] == [note for note, _ in expected.values()]
        if step % 3 == 2:
            checkpoint = view.checkpoint(lambda digest: f"data/{digest}")
            for upload in checkpoint.uploads:
                store.put(upload.path, upload.content())
                upload.on_stored()
    assert contents(view) == expected
    restored = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, tiers=tiers, parts=[view.metadata()], owner="restored")
    assert contents(restored) == expected
