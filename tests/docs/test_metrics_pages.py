"""The page of metrics and the Grafana dashboard name what the code has, all of it and nothing else."""

import json
import re
from typing import Any

import pytest
from docs.markdown import ROOT

from docs import grafana_dashboard, metrics_page
from statebed.metrics import CATALOGUE, MetricKind

_NAME = re.compile(r"\bstatebed_\w+")
_SELECTOR = re.compile(r"\b(statebed_\w+)\{([^}]*)\}")
_LEGEND = re.compile(r"\{\{(\w+)\}\}")
_BY = re.compile(r"by \(([^)]*)\)")
_PARTS = ("_bucket", "_sum", "_count")


def metric_of(name: str) -> str:
    """The metric that a series belongs to."""
    for part in _PARTS:
        whole = name.removesuffix(part)
        if whole != name and whole in CATALOGUE and CATALOGUE[whole].kind is MetricKind.HISTOGRAM:
            return whole
    return name


def targets() -> list[dict[str, Any]]:
    shown = json.loads(grafana_dashboard.FILE.read_text(encoding="utf-8"))
    return [target for panel in shown["panels"] for target in panel.get("targets", [])]


def test_the_page_of_metrics_is_what_the_code_declares() -> None:
    assert metrics_page.PAGE.read_text(encoding="utf-8") == metrics_page.page(), (
        "run: python tests/docs/metrics_page.py"
    )


def test_the_dashboard_is_what_its_script_writes() -> None:
    written = grafana_dashboard.FILE.read_text(encoding="utf-8")
    assert written == grafana_dashboard.text(), "run: python tests/docs/grafana_dashboard.py"


@pytest.mark.parametrize("target", targets(), ids=lambda target: target["expr"])
def test_an_expression_names_metrics_and_labels_that_exist(target: dict[str, Any]) -> None:
    named = [metric_of(name) for name in _NAME.findall(target["expr"])]
    assert named
    assert set(named) <= set(CATALOGUE)
    known = {"le"} | {label for name in named for label in CATALOGUE[name].labels}
    for name, selector in _SELECTOR.findall(target["expr"]):
        labels = {pair.partition("=")[0].strip() for pair in selector.split(",")}
        assert labels <= set(CATALOGUE[metric_of(name)].labels)
    used = set(_LEGEND.findall(target["legendFormat"]))
    used |= {label.strip() for some in _BY.findall(target["expr"]) for label in some.split(",")}
    assert used <= known


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {metric_of(name) for target in targets() for name in _NAME.findall(target["expr"])}
    assert shown == set(CATALOGUE)


def test_panels_have_numbers_of_their_own_and_do_not_lie_on_each_other() -> None:
    panels = grafana_dashboard.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (place["x"] + column, place["y"] + line)
        for place in places
        for column in range(place["w"])
        for line in range(place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(place["x"] + place["w"] <= 24 for place in places)


@pytest.mark.parametrize("page", ["docs/howto/watch-a-job.md", "docs/reference/metrics.md"])
def test_documents_name_metrics_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert {metric_of(name) for name in _NAME.findall(text)} <= set(CATALOGUE)
