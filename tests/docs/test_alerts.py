"""The alert rules ask for metrics and labels that jobs have, and the checklist names every alert."""

import re

from docs.markdown import ROOT

from statebed.metrics.catalogue import CATALOGUE

RULES = (ROOT / "docs" / "alerts" / "statebed.rules.yml").read_text(encoding="utf-8")
CHECKLIST = (ROOT / "docs" / "howto" / "operations.md").read_text(encoding="utf-8")
METRIC = re.compile(r"\bstatebed_[a-z_]+\b")


def exported_names() -> set[str]:
    return {f"{metric.name}{suffix}" for metric in CATALOGUE.values() for suffix in ("", "_bucket", "_sum", "_count")}


def test_alert_rules_and_checklist_use_metrics_that_exist() -> None:
    used = set(METRIC.findall(RULES)) | set(METRIC.findall(CHECKLIST))
    assert len(used) > 10
    assert used <= exported_names()


def test_the_checklist_says_what_to_do_for_every_alert() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES)
    assert len(alerts) == len(set(alerts)) > 10
    assert re.findall(r"^\| `(Statebed\w+)` \|", CHECKLIST, flags=re.MULTILINE) == alerts
