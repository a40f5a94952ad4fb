# SPDX-License-Identifier: Apache-2.0
"""Asks Prometheus what Grafana would ask for a dashboard: its variables, the step of its panels, and the series. Standard library only."""

import dataclasses
import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request

# Grafana's grid: 24 columns; a panel of w columns and h cells.
COLUMNS, CELL_HEIGHT, GAP = 24, 30, 8
# The step is a round number of seconds or more, such that a panel has no more points than pixels.
STEPS_S = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400]
TIMEOUT_S = 60

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)(?::\w+)?\}|\[\[(\w+)\]\]")
LABEL_VALUES = re.compile(r"label_values\(\s*(?:(.+),\s*)?(\w+)\s*\)$")


class QueryError(Exception):
    """Says what is wrong with an answer of Prometheus or with the dashboard."""


@dataclasses.dataclass
class Series:
    name: str  # as in the legend
    points: list  # (Unix time, value); a missing value is None


@dataclasses.dataclass
class TimeRange:
    """Start and end in Unix seconds, and the interval at which Prometheus scrapes."""
    start: float
    end: float
    scrape_s: float


def seconds(text):
    """Returns the seconds of "90", "90s", "15m" or "3h"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if not match:
        raise ValueError(f"no duration: {text}")
    return float(match[1]) * UNITS_S[match[2] or "s"]


def duration(of_s):
    """Returns the duration in PromQL's notation."""
    return f"{of_s:g}s" if of_s == int(of_s) else f"{round(1000 * of_s)}ms"


class Prometheus:
    """The HTTP API at `url`."""

    def __init__(self, url):
        self._url = url.rstrip("/")

    def get(self, path, **query):
        """Returns `data` of the answer. Raises QueryError with Prometheus' own message."""
        # Sent as a form, because a query may be longer than a request line.
        body = urllib.parse.urlencode(query).encode() if "query" in query else None
        address = self._url + path + ("?" + urllib.parse.urlencode(query) if body is None and query else "")
        try:
            with urllib.request.urlopen(urllib.request.Request(address, data=body), timeout=TIMEOUT_S) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                raise QueryError(json.loads(text)["error"]) from None
            except (ValueError, KeyError):
                raise QueryError(f"status {error.code}: {text[:200]}") from None
        except (OSError, ValueError) as error:
            raise QueryError(f"{address}: {error}") from None
        return answer["data"]


def step_of(width_px, time_range):
    """Returns the seconds between the points of a panel."""
    least = (time_range.end - time_range.start) / width_px
    return max(next((step for step in STEPS_S if step >= least), least), time_range.scrape_s)


def built_in_variables(step_s, time_range):
    return {"__interval": duration(step_s), "__rate_interval": duration(max(step_s + time_range.scrape_s, 4 * time_range.scrape_s)),
            "__range": duration(round(time_range.end - time_range.start))}


def fill_in(text, values):
    """Returns `text` with its variables replaced by their values. Raises QueryError for a variable without a value."""

    def value(match):
        name = match[1] or match[2] or match[3]
        if name not in values:
            raise QueryError(f"no variable {name}")
        return values[name]
    return VARIABLE.sub(value, text)


def as_pattern(values):
    """Returns several values of a label as one pattern for Prometheus. Backslashes of the pattern are doubled, because it is in a string."""
    escaped = [re.sub(r"([\\^$*+?.()|{}\[\]])", r"\\\1", value).replace("\\", "\\\\") for value in values]
    return escaped[0] if len(escaped) == 1 else "(" + "|".join(escaped) + ")"


def variables(dashboard, prometheus, time_range, chosen):
    """Returns name -> text for each variable of the dashboard: what `chosen` says, else all values if the variable allows that, else the first."""
    values = {}
    for variable in dashboard.get("templating", {}).get("list", []):
        name, kind = variable["name"], variable["type"]
        if name in chosen:
            values[name] = chosen[name]
        elif kind == "datasource":
            values[name] = name
        elif kind == "query":
            query = variable["query"]
            match = LABEL_VALUES.match(query if isinstance(query, str) else query["query"])
            if not match:
                raise QueryError(f"variable {name}: only label_values is understood")
            of_series = {"match[]": fill_in(match[1], values)} if match[1] else {}
            found = prometheus.get(f"/api/v1/label/{match[2]}/values", start=time_range.start, end=time_range.end, **of_series)
            if not variable.get("includeAll"):
                found = found[:1]
            values[name] = variable.get("allValue") if variable.get("includeAll") and variable.get("allValue") else as_pattern(found or [""])
        else:
            raise QueryError(f"variable {name}: type {kind} is not understood")
    return values


def legend(target, labels):
    template = target.get("legendFormat")
    if not template or template == "__auto":
        text = ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if name != "__name__")
        return text or labels.get("__name__", target["expr"])
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), template).strip()


def _number(text):
    value = float(text)
    return value if math.isfinite(value) else None


def ask(panel, prometheus, values, time_range, width_px):
    """Returns the series of a panel, in the order of its legend."""
    step = step_of(width_px, time_range)
    values = {**values, **built_in_variables(step, time_range)}
    found = []
    for target in panel.get("targets", []):
        query = fill_in(target["expr"], values)
        if target.get("instant"):
            answer = prometheus.get("/api/v1/query", query=query, time=time_range.end)
        else:
            # Starts at a multiple of the step, so that a panel looks the same a moment later.
            start = math.floor(time_range.start / step) * step
            answer = prometheus.get("/api/v1/query_range", query=query, start=start, end=time_range.end, step=step)
        if answer["resultType"] not in ("vector", "matrix"):
            raise QueryError(f"{query}: a {answer['resultType']}")
        for result in answer["result"]:
            at = {float(time): _number(value) for time, value in result.get("values") or [result["value"]]}
            times = list(at) if target.get("instant") else [start + i * step for i in range(int((time_range.end - start) / step) + 1)]
            found.append(Series(legend(target, result["metric"]), [(time, at.get(time)) for time in times]))
    return found


def is_empty(series):
    return not any(value is not None for one in series for _, value in one.points)
