"""Values of metrics, and their text in the Prometheus exposition format 0.0.4."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from statebed.metrics.catalogue import CATALOGUE, MetricKind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[str, ...]
"""Label values of a metric, in the order of its labels."""


@dataclass(frozen=True)
class Sample:
    """One value."""

    metric: str
    labels: Labels
    value: float


@dataclass(frozen=True)
class Distribution:
    """Values of a histogram: cumulative counts per bucket, their total and sum."""

    metric: str
    labels: Labels
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Cumulative counts, one for each bound."""
    count: int
    total: float


def exposition(samples: Iterable[Sample | Distribution]) -> str:
    """Render the text that Prometheus scrapes; each metric family once, in the order of the catalogue."""
    by_metric: dict[str, list[Sample | Distribution]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for name, metric in CATALOGUE.items():
        if name not in by_metric:
            continue
        lines += [f"# HELP {name} {_escaped_help(metric.text)}", f"# TYPE {name} {metric.kind.value}"]
        for sample in by_metric[name]:
            lines += _lines(sample)
    return "".join(f"{line}\n" for line in lines)


def _lines(sample: Sample | Distribution) -> Iterator[str]:
    metric = CATALOGUE[sample.metric]
    pairs = list(zip(metric.labels, sample.labels, strict=True))
    if isinstance(sample, Sample):
        assert metric.kind is not MetricKind.HISTOGRAM
        yield f"{metric.name}{_labels(pairs)} {_number(sample.value)}"
        return
    for bound, count in zip(sample.bounds, sample.counts, strict=True):
        yield f"{metric.name}_bucket{_labels([*pairs, ('le', _number(bound))])} {count}"
    yield f"{metric.name}_bucket{_labels([*pairs, ('le', '+Inf')])} {sample.count}"
    yield f"{metric.name}_sum{_labels(pairs)} {_number(sample.total)}"
    yield f"{metric.name}_count{_labels(pairs)} {sample.count}"


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    r"""Escape a label value for use inside quotes.

    >>> _escaped('a"b')
    'a\\"b'
    """
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1 << 53 else repr(float(value))
