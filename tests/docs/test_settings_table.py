"""The table of settings is what the code declares."""

from docs.settings_table import PAGE, page


def test_the_table_of_settings_is_what_the_code_declares() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/docs/settings_table.py"
