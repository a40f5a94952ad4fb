#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that programs, documents, alerts and dashboard name the same metrics.

Every metric of the sources is in the lists of docs/api.md, "Metrics", and every one of these in the sources. Every metric and
label that deploy/monitoring names is there too, or is Prometheus' own ALERTS. Prints each offence as file: expression or name:
reason; exit status 1 if any.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MONITORING = ROOT / "deploy" / "monitoring"
# Folders whose programs Prometheus scrapes, and what they are made of.
SOURCES = ("common", "coordinator", "worker", "kvstore")

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
# Labels that any series may have: the process that was scraped, and a histogram's bounds.
COMMON_LABELS = {"instance", "job", "le"}

# The series that Prometheus makes of alerts.
ALERTS = {"ALERTS": {"alertname", "alertstate", "severity"} | COMMON_LABELS}

METRIC = re.compile(r"\b(?:millrace_[a-z_]+|ALERTS\b)")
BY = re.compile(r"\bby \(([^)]*)\)")
SELECTOR = re.compile(r"\{([^}]*)\}")
# - `NAME`, `NAME` (KIND): `LABEL` (`VALUE`, ...), ...: TEXT
ITEM = re.compile(r"- (?P<names>`millrace_[^(]*) \((?P<kind>[a-z]+)[^)]*\)(?:: (?P<labels>.*))?$")
LABEL_VALUES = re.compile(r"\blabel_values\([^,]+, *([a-z_]+)\)")


def documented():
    """Returns name, with a histogram's suffixes -> the labels of its item. Metrics of groups also have `group`."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").split("\n## Metrics\n")[1]
    metrics = dict(ALERTS)
    of_groups = False
    for paragraph in re.split(r"\n\n|\n(?=- )", text.split("\n## ")[0]):
        paragraph = " ".join(paragraph.split())
        of_groups = of_groups or "with the label `group`" in paragraph
        item = ITEM.match(paragraph)
        if item is None:
            continue
        # A label's values follow it in parentheses.
        labels = set(re.findall(r"`([a-z]+)`", re.sub(r"\([^)]*\)", "", item["labels"] or "")))
        labels |= COMMON_LABELS
        labels |= {"group"} if of_groups else set()
        kinds = HISTOGRAM_SUFFIXES if item["kind"] == "histogram" else ("",)
        for name in re.findall(r"`(millrace_[a-z_]+)`", item["names"]):
            metrics.update({name + kind: labels for kind in kinds})
    return metrics


def made():
    """Yields pairs of source and the name of a metric that it makes: a literal that is nothing but a metric's name."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.cc")):
            for name in re.findall(r'"(millrace_[a-z_]+)"', path.read_text(encoding="utf-8")):
                yield str(path.relative_to(ROOT)), name


def undocumented(metrics):
    known = {name.removesuffix("_bucket") for name in metrics if not name.endswith(("_sum", "_count"))} - ALERTS.keys()
    names = list(made())
    yield from (f"{file}: {name}: docs/api.md does not list it" for file, name in names if name not in known)
    yield from (f"docs/api.md: {name}: no source makes it" for name in sorted(known - {name for _, name in names}))


def expressions():
    """Yields pairs of file name and PromQL expression."""
    dashboard = MONITORING / "dashboard.json"
    content = json.loads(dashboard.read_text(encoding="utf-8"))
    for variable in content["templating"]["list"]:
        if variable["type"] == "query":
            yield dashboard.name, variable["query"]["query"]
    for panel in content["panels"]:
        for target in panel.get("targets", []):
            yield dashboard.name, target["expr"]
    alerts = MONITORING / "alerts.yml"
    # An expression is the rest of its line, or the more deeply indented lines that follow.
    blocks = re.findall(r"^ +expr: (.*(?:\n {10}.*)*)", alerts.read_text(encoding="utf-8"), re.M)
    for block in blocks:
        yield alerts.name, " ".join(block.split())


def labels_in(expression):
    yield from LABEL_VALUES.findall(expression)
    for names in BY.findall(expression):
        yield from (name.strip() for name in names.split(","))
    for selector in SELECTOR.findall(expression):
        yield from re.findall(r"([a-z_]+) *(?:=~|!~|!=|=)", selector)


def offences(expression, metrics):
    names = set(METRIC.findall(expression))
    known = COMMON_LABELS.union(*(metrics.get(name, ()) for name in names))
    yield from (f"docs/api.md has no {name}" for name in sorted(names - metrics.keys()))
    yield from (f"no label {label}" for label in labels_in(expression) if label not in known)


def main():
    metrics = documented()
    found = list(undocumented(metrics))
    found += [f"{file}: {expression}: {reason}" for file, expression in expressions()
              for reason in offences(expression, metrics)]
    print("\n".join(found) or f"{len(list(expressions()))} expressions over documented metrics, which are those of the sources")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
