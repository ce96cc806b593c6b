"""The page of settings is what the code declares."""

from pathlib import Path

from docs.markdown import blocks
from docs.settings_table import PAGE, page

from statebed.config import FILE_NAME, resolve


def test_the_table_of_settings_is_what_the_code_declares() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/docs/settings_table.py"


def test_the_file_that_the_page_shows_is_one_that_works(tmp_path: Path) -> None:
    [shown] = [block.text for block in blocks(PAGE) if block.text.startswith(f"# {FILE_NAME}")]
    (tmp_path / FILE_NAME).write_text(shown)
    found = resolve({}, spark_conf={}, environ={}, folder=tmp_path)
    assert set(found.places) == {"state", "memory", "retained_age"}
