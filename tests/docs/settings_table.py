"""Writes the table of settings in docs/reference/configuration.md: `python tests/docs/settings_table.py`."""

from pathlib import Path

from statebed.config import DECLARATIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "configuration.md"
_HEAD = "| setting | value | default | meaning |\n|---|---|---|---|\n"


def table() -> str:
    """Every setting, as it is declared."""
    rows = (
        f"| `{one.name}` | {one.kind.words} | {_default(one.shown(one.default), fixed=one.default is not None)} "
        f"| {one.text} |\n"
        for one in DECLARATIONS.values()
    )
    return _HEAD + "".join(rows)


def _default(text: str, *, fixed: bool) -> str:
    return f"`{text}`" if fixed else text


def page() -> str:
    """The page with the table as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, found, rest = text.partition(_HEAD)
    if not found:
        raise ValueError(f"{PAGE.name} has no table of settings")
    lines = rest.splitlines(keepends=True)
    after = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return before + table() + "".join(lines[after:])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
