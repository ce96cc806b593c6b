"""Charts of the key hashes (or times) that the files of a table cover.

The upper part shows the number of files that a lookup has to read for each part of the key space. Below are the files
themselves, if there are few enough to distinguish them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup

from statebed.format import checkpoint_pb2 as pb
from statebed.present import units
from statebed.ui import visible_text

SPACE = 1 << 64
_WIDTH = 1200.0
_TALL = 84.0
_TOP = 22.0
_BUCKETS = 120
_MAX_FILES = 64
_THIN = 5.0
_STEP = 7.0
_LEAST = 2.0
"""Minimum width of a file."""


@dataclass(frozen=True)
class Span:
    """The part of the space that a file covers, as fractions of the whole, and the file's level."""

    first: float
    last: float
    level: int
    text: str


@dataclass(frozen=True)
class Coverage:
    """All files of a table along one axis."""

    title: str
    spans: tuple[Span, ...]
    edges: tuple[float, ...]
    """Boundaries between subtasks."""
    start: str
    end: str

    @cached_property
    def counts(self) -> list[dict[int, int]]:
        """Return the number of files of each level for each part of the space."""
        changes: list[dict[int, int]] = [{} for _ in range(_BUCKETS + 1)]
        for span in self.spans:
            first, last = (min(int(share * _BUCKETS), _BUCKETS - 1) for share in (span.first, span.last))
            changes[first][span.level] = changes[first].get(span.level, 0) + 1
            changes[last + 1][span.level] = changes[last + 1].get(span.level, 0) - 1
        by_level: list[dict[int, int]] = []
        now: dict[int, int] = {}
        for change in changes[:-1]:
            now = {level: now.get(level, 0) + change.get(level, 0) for level in {*now, *change}}
            by_level.append({level: count for level, count in now.items() if count})
        return by_level

    @cached_property
    def deepest(self) -> int:
        return max((sum(counts.values()) for counts in self.counts), default=0)

    @property
    def described(self) -> str:
        return f"{self.title}: {units.plural(len(self.spans), 'file')}, at most {self.deepest} at one position"

    def drawn(self) -> Markup:
        """Render the chart as SVG."""
        listed = self.spans if len(self.spans) <= _MAX_FILES else ()
        height = _TOP + _TALL + 24 + len(listed) * _STEP + (8 if listed else 0)
        parts = [*self._depth(), *self._edges(height), *self._files(listed, _TOP + _TALL + 28)]
        frame = Markup('<svg class="coverage" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg>')
        return frame.format(_WIDTH, height, self.described, Markup("").join(parts))

    def _depth(self) -> list[Markup]:
        bar = Markup('<rect class="fill c{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>')
        text = Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
        wide, bottom = _WIDTH / _BUCKETS, _TOP + _TALL
        parts = [Markup('<line class="grid" x1="0" x2="{0}" y1="{1}" y2="{1}"/>').format(_WIDTH, _TOP)]
        for place, counts in enumerate(self.counts):
            y = bottom
            for level, count in sorted(counts.items(), reverse=True):
                tall = _TALL * count / self.deepest
                y -= tall
                parts.append(bar.format(colour(level), place * wide, y, wide * 0.92, tall))
        parts.append(text.format(2, _TOP - 5, "start", f"{units.plural(self.deepest, 'file')} at one position"))
        parts.append(text.format(2, bottom + 17, "start", self.start))
        parts.append(text.format(_WIDTH - 2, bottom + 17, "end", self.end))
        hit = Markup('<rect class="hit" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>')
        for place, counts in enumerate(self.counts):
            descriptions = [f"level {level}: {units.plural(count, 'file')}" for level, count in sorted(counts.items())]
            parts.append(hit.format(place * wide, _TOP, wide, _TALL, "\n".join(descriptions) or "no file"))
        return parts

    def _edges(self, height: float) -> list[Markup]:
        line = Markup('<line class="edge" x1="{:.1f}" x2="{:.1f}" y1="{:.0f}" y2="{:.0f}"/>')
        return [line.format(edge * _WIDTH, edge * _WIDTH, _TOP, height) for edge in self.edges]

    def _files(self, spans: Sequence[Span], y: float) -> list[Markup]:
        bar = Markup(
            '<rect class="fill hit-bar c{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="1.5">'
            "<title>{}</title></rect>"
        )
        ordered = sorted(spans, key=lambda span: (span.level, span.first))
        return [
            bar.format(
                colour(span.level),
                min(span.first * _WIDTH, _WIDTH - _LEAST),
                y + number * _STEP,
                max((span.last - span.first) * _WIDTH, _LEAST),
                _THIN,
                span.text,
            )
            for number, span in enumerate(ordered)
        ]


def colour(level: int) -> int:
    """Return the palette index of a level; level 0 stands out."""
    return (4, 2, 3, 1, 6)[min(level, 4)]


def key_coverage(files: Sequence[pb.FileEntry], owned: Sequence[pb.HashRange]) -> Coverage | None:
    """Return the coverage by key hash, or None for tables whose files have no key hashes."""
    if not any(file.max_key_hash for file in files):
        return None
    spans = tuple(
        Span(
            max(file.min_key_hash, file.owned.first) / SPACE,
            min(file.max_key_hash, file.owned.last or SPACE) / SPACE,
            file.level,
            _told(file),
        )
        for file in files
    )
    starts = sorted({owned_range.first for owned_range in owned} - {0})
    return Coverage("Key hashes", spans, tuple(start / SPACE for start in starts), "0", "2⁶⁴ - 1")


def time_coverage(files: Sequence[pb.FileEntry]) -> Coverage | None:
    """Return the coverage by event time, or None if the files span no time."""
    timed = [file for file in files if file.HasField("min_time_us") and file.HasField("max_time_us")]
    first = min((file.min_time_us for file in timed), default=0)
    last = max((file.max_time_us for file in timed), default=0)
    if last <= first:
        return None
    whole = last - first
    spans = tuple(
        Span((file.min_time_us - first) / whole, (file.max_time_us - first) / whole, file.level, _told(file))
        for file in timed
    )
    return Coverage("Times of rows", spans, (), units.instant(first), units.instant(last))


def _told(file: pb.FileEntry) -> str:
    path = visible_text.clipped(file.path)
    return f"{path}\nlevel {file.level}, {units.number(file.rows)} rows, {units.size(file.size)}"
