"""Writes the table in docs/reference/metrics.md from the catalogue: `python tests/docs/metrics_page.py`."""

from pathlib import Path

from statebed.metrics import CATALOGUE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
_HEAD = "| metric | kind | labels | meaning |\n|---|---|---|---|\n"


def table() -> str:
    """Every metric, as it is declared."""
    rows = (
        f"| `{one.name}` | {one.kind.value} | {', '.join(f'`{label}`' for label in one.labels)} | {one.text} |\n"
        for one in CATALOGUE.values()
    )
    return _HEAD + "".join(rows)


def page() -> str:
    """The page with the table as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, found, rest = text.partition(_HEAD)
    if not found:
        raise ValueError(f"{PAGE.name} has no table of metrics")
    lines = rest.splitlines(keepends=True)
    after = next((number for number, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return before + table() + "".join(lines[after:])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
