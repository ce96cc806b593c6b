"""Markdown as the tests of the documents need it: fenced blocks, headings, links, and the markers before blocks.

A block may be preceded by one comment of ours:

    <!-- not run: REASON -->    the block is not executed, and says why
    <!-- output -->             the block is exactly what the block before it prints
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP_LEVEL = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md")

_FENCE = re.compile(r"^ {0,3}(```+)\s*(\S*)\s*$")
_NOT_RUN = re.compile(r"^<!-- not run: (?P<reason>\S.*) -->$")
_OUTPUT = "<!-- output -->"
_HEADING = re.compile(r"^#{1,6} (.+)$")
_LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)|<img[^>]* src=\"([^\"]+)\"")
_INLINE_CODE = re.compile(r"`[^`]*`")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    document: str
    line: int
    """Number of its first line of content, from 1."""
    language: str
    text: str
    not_run: str = ""
    """The reason that its marker gives."""
    is_output: bool = False

    @property
    def where(self) -> str:
        return f"{self.document}:{self.line}"


def documents() -> list[Path]:
    """Every document that users and contributors read."""
    return [*(ROOT / name for name in TOP_LEVEL), *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    return list(_blocks(name_of(path), path.read_text(encoding="utf-8").splitlines()))


def _blocks(document: str, lines: list[str]) -> Iterator[Block]:
    marker, number = "", 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            marker = lines[number].strip() or marker
            number += 1
            continue
        start = number + 1
        end = next(
            (i for i in range(start, len(lines)) if lines[i].strip() == opening.group(1)),
            None,
        )
        if end is None:
            raise ValueError(f"{document}:{number + 1}: this block has no end")
        reason = _NOT_RUN.match(marker)
        yield Block(
            document=document,
            line=start + 1,
            language=opening.group(2),
            text="\n".join(lines[start:end]) + "\n",
            not_run=reason["reason"] if reason else "",
            is_output=marker == _OUTPUT,
        )
        marker, number = "", end + 1


def prose(path: Path) -> list[tuple[int, str]]:
    """The lines outside blocks, with their numbers."""
    found, fence = [], ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = _FENCE.match(line)
        if match and not fence:
            fence = match.group(1)
        elif fence and line.strip() == fence:
            fence = ""
        elif not fence:
            found.append((number, line))
    return found


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives to a document's headings."""
    found: set[str] = set()
    for _, line in prose(path):
        heading = _HEADING.match(line)
        if heading:
            text = re.sub(r"[^\w\- ]", "", heading.group(1).strip().lower())
            slug, copies = text.replace(" ", "-"), 0
            while (f"{slug}-{copies}" if copies else slug) in found:
                copies += 1
            found.add(f"{slug}-{copies}" if copies else slug)
    return found


def links(path: Path) -> list[tuple[int, str]]:
    """Targets of links and pictures, with their lines."""
    return [
        (number, match.group(1) or match.group(2))
        for number, line in prose(path)
        for match in _LINK.finditer(_INLINE_CODE.sub("", line) if "](" not in line else line)
    ]
