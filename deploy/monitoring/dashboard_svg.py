# SPDX-License-Identifier: Apache-2.0
"""Draws a dashboard's panels as Grafana lays them out, in one SVG: rows, time series and stats. Standard library only."""

import math
import time
from xml.sax.saxutils import escape

from dashboard_queries import CELL_HEIGHT, COLUMNS, GAP, is_empty

HEADER = 44  # above the panels, for the dashboard's title and time
PALETTE = ["#56A64B", "#E0B400", "#3274D9", "#FF780A", "#E02F44", "#8F3BB8", "#1F9EA8", "#B877D9", "#705DA0", "#5C6773", "#A16A2B", "#37872D"]
NAMED_COLOURS = {"green": "#56A64B", "yellow": "#E0B400", "orange": "#FF780A", "red": "#E02F44", "blue": "#3274D9", "text": "#24292E"}
INK, FAINT, GRID = "#24292E", "#6E7781", "#E4E7EB"
CHARACTER = 6.2  # approximate width of a character at a font size of 11 pixels

# Units that grow by a constant factor: the factor, the suffix of each power, and what follows the suffix.
SCALED = {"short": (1000, ["", " K", " Mil", " Bil", " Tri"], ""),
          "Bps": (1000, [" B", " kB", " MB", " GB", " TB"], "/s"),
          "bytes": (1024, [" B", " KiB", " MiB", " GiB", " TiB"], "")}
PER_SECOND = {"reqps": " req/s", "ops": " ops/s"}
# Times are scaled by thousands below a second, and to minutes, hours and days above.
LONG_TIMES = [(86400, " day"), (3600, " hour"), (60, " min")]
SHORT_TIMES = [(1, " s"), (1e-3, " ms"), (1e-6, " µs")]


class UnknownOption(Exception):
    """The dashboard asks for something that is not drawn here."""


def _digits(value, decimals):
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def with_unit(value, unit, decimals=None):
    """Returns the value in readable form: 1234 in unit short is 1.23 K."""
    def number(of):
        if decimals is not None:
            return f"{of:.{decimals}f}"
        return _digits(of, 0 if abs(of) >= 100 else 1 if abs(of) >= 10 else 2 if abs(of) >= 0.1 or not of else 3)

    if unit == "none":
        return number(value)
    if unit == "percentunit":
        return number(100 * value) + "%"
    if unit in PER_SECOND:
        return with_unit(value, "short", decimals) + PER_SECOND[unit]
    if unit.startswith("suffix:"):
        return number(value) + unit.removeprefix("suffix:")
    if unit == "s":
        for size, name in [*LONG_TIMES, *SHORT_TIMES]:
            if abs(value) >= size:
                return number(value / size) + name
        return number(value) + " s" if not value else number(value / 1e-6) + " µs"
    if unit in SCALED:
        base, names, tail = SCALED[unit]
        power = 0
        while abs(value) >= base and power + 1 < len(names):
            value, power = value / base, power + 1
        return number(value) + names[power] + tail
    raise UnknownOption(f"unit {unit}")


def ticks(least, most, unit, decimals=None):
    """Returns up to six round values from `least` to `most`, no finer than `decimals`; for bytes, the step is a power of two."""
    raw = (most - least) / 5
    if decimals is not None and unit != "percentunit":
        raw = max(raw, 10.0 ** -decimals)
    if unit == "bytes" and raw > 0:
        step = 2.0 ** math.ceil(math.log2(raw))
    else:
        power = 10.0 ** math.floor(math.log10(raw))
        factors = (1, 2, 5, 10) if decimals is not None else (1, 2, 2.5, 5, 10)
        step = next(factor * power for factor in factors if factor * power >= raw * 0.999)
    first = math.ceil(least / step - 1e-9)
    return [i * step for i in range(first, math.floor(most / step + 1e-9) + 1)]


def _round_up(least, most, unit, decimals):
    """Returns the end of the axis: `most`, or the next tick after it."""
    values = ticks(least, most, unit, decimals)
    step = values[1] - values[0] if len(values) > 1 else most - least
    return most if values[-1] >= most - 1e-9 * step else values[-1] + step


def layout_faults(panels):
    """Returns what Grafana would move: panels outside the grid or on top of one another."""
    faults, places = [], []
    for panel in panels:
        place = panel["gridPos"]
        title = panel.get("title", "")
        if place["x"] < 0 or place["x"] + place["w"] > COLUMNS or place["w"] < 1 or place["h"] < 1:
            faults.append(f"{title}: beside the grid of {COLUMNS} columns")
        for other, other_title in places:
            if (place["x"] < other["x"] + other["w"] and other["x"] < place["x"] + place["w"]
                    and place["y"] < other["y"] + other["h"] and other["y"] < place["y"] + place["h"]):
                faults.append(f"{title}: overlaps {other_title}")
        places.append((place, title))
    return faults


def panel_width(panel, width):
    """Returns the panel's width in pixels, in a dashboard that is `width` pixels wide."""
    return (width - GAP) * panel["gridPos"]["w"] / COLUMNS - GAP


def _text(x, y, text, anchor="start", size=11, colour=INK, weight=None):
    bold = f' font-weight="{weight}"' if weight else ""
    end = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size:g}" fill="{colour}"{end}{bold}>{escape(text)}</text>'


def _cut(text, width, character=CHARACTER):
    most = max(1, int(width / character))
    return text if len(text) <= most else text[:most - 1] + "…"


def _colour(name):
    if name not in NAMED_COLOURS:
        raise UnknownOption(f"colour {name}")
    return NAMED_COLOURS[name]


def _threshold_colour(value, field):
    steps = field.get("thresholds", {}).get("steps") or [{"value": None, "color": "green"}]
    return _colour([step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1])


def _runs(points):
    """Returns the stretches of points without a gap."""
    run = []
    for at, value in points:
        if value is None:
            if run:
                yield run
            run = []
        else:
            run.append((at, value))
    if run:
        yield run


def _stacked(series):
    """Returns the (lower, upper) edges of each series by point. A missing value adds nothing to the stack and is not drawn."""
    base = {}
    for one in series:
        edges = []
        for at, value in one.points:
            low = base.get(at, 0)
            edges.append((at, None if value is None else (low, low + value)))
            base[at] = low + (value or 0)
        yield edges


def _bounds(field, edges):
    values = [bound for points in edges for _, value in points if value for bound in value]
    custom = field.get("custom", {})
    least, most = min(values, default=0), max(values, default=1)
    if not all(value == 0 for value in (least, most)) and least == most:
        least, most = (0, 2 * most) if most > 0 else (2 * most, 0)
    least = field.get("min", min(least, custom.get("axisSoftMin", least)))
    most = field.get("max", max(most, custom.get("axisSoftMax", most)))
    most = most if most > least else least + 1
    return least, most if "max" in field else _round_up(least, most, field.get("unit", "short"), field.get("decimals"))


def _path(points):
    """Returns a path through pixels, each relative to the one before, in tenths. Points in the middle of a level stretch are left out."""
    tenths = [(round(10 * x), round(10 * y)) for x, y in points]
    kept = [point for i, point in enumerate(tenths) if i in (0, len(tenths) - 1) or not tenths[i - 1][1] == point[1] == tenths[i + 1][1]]
    text, (x, y) = f"M{kept[0][0] / 10:g} {kept[0][1] / 10:g}l", kept[0]
    for next_x, next_y in kept[1:]:
        text += f"{(next_x - x) / 10:g} {(next_y - y) / 10:g} "
        x, y = next_x, next_y
    return text.rstrip().replace(" -", "-")


class _Plot:
    """The rectangle of a time series' axes."""

    def __init__(self, left, top, width, height, time_range, bounds):
        self.left, self.top, self.width, self.height = left, top, width, height
        self._range, self._bounds = time_range, bounds

    def x(self, at):
        return self.left + self.width * (at - self._range.start) / (self._range.end - self._range.start)

    def y(self, value):
        least, most = self._bounds
        return self.top + self.height * (1 - (min(max(value, least), most) - least) / (most - least))

    def axes(self, unit, decimals):
        least, most = self._bounds
        values = ticks(least, most, unit, decimals)
        while len({with_unit(value, unit, decimals) for value in values}) < len(values) and (decimals or 0) < 6:
            decimals = (decimals or 0) + 1
        for value in values:
            yield f'<path d="M{self.left:.0f} {self.y(value):.1f}h{self.width:.0f}" stroke="{GRID}"/>'
            yield _text(self.left - 6, self.y(value) + 4, with_unit(value, unit, decimals), "end", 11, FAINT)
        span = self._range.end - self._range.start
        step = next(step for step in (10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 7 * 86400, 365 * 86400)
                    if step * self.width / span >= 70 or step == 365 * 86400)
        form = "%H:%M:%S" if step < 60 else "%H:%M" if span <= 86400 else "%d %b %H:%M"
        at = math.ceil(self._range.start / step) * step
        while at <= self._range.end:
            if self.x(at) <= self.left + self.width - 14:
                yield f'<path d="M{self.x(at):.1f} {self.top:.0f}v{self.height:.0f}" stroke="{GRID}"/>'
                yield _text(self.x(at), self.top + self.height + 15, time.strftime(form, time.gmtime(at)), "middle", 11, FAINT)
            at += step

    def area(self, edges, colour, opacity, lowest):
        """Fills from the lower edges, which are all `lowest` if nothing is stacked, to the upper ones."""
        for run in _runs(edges):
            upper = [(self.x(at), self.y(high)) for at, (_, high) in run]
            lower = [(self.x(at), self.y(low)) for at, (low, _) in reversed(run)]
            if all(low == lowest for _, (low, _) in run):
                lower = [lower[0], lower[-1]]
            yield f'<path d="{_path(upper + lower)}z" fill="{colour}" fill-opacity="{opacity:g}"/>'

    def line(self, edges, colour, width, points):
        for run in _runs(edges):
            if len(run) > 1:
                path = _path([(self.x(at), self.y(high)) for at, (_, high) in run])
                yield f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}" stroke-linejoin="round"/>'
            elif points != "never":
                yield f'<circle cx="{self.x(run[0][0]):.1f}" cy="{self.y(run[0][1][1]):.1f}" r="2.5" fill="{colour}"/>'

    def thresholds(self, field):
        for step in field.get("thresholds", {}).get("steps", []):
            if step["value"] is not None and self._bounds[0] < step["value"] < self._bounds[1]:
                yield (f'<path d="M{self.left:.0f} {self.y(step["value"]):.1f}h{self.width:.0f}" stroke="{_colour(step["color"])}" '
                       f'stroke-dasharray="8 6"/>')


def _legend(names, left, width):
    """Returns lines of entries: (number of the series, offset, name)."""
    lines, offset = [[]], 0
    for number, name in enumerate(names):
        name = _cut(name, width - 24)
        needed = 20 + len(name) * CHARACTER + 12
        if offset + needed > width and lines[-1]:
            lines.append([])
            offset = 0
        lines[-1].append((number, left + offset, name))
        offset += needed
    return lines


def _time_series(panel, series, box, time_range):
    left, top, width, height = box
    field = panel["fieldConfig"]["defaults"]
    custom = field.get("custom", {})
    unit, decimals = field.get("unit", "short"), field.get("decimals")
    stacking = custom.get("stacking", {}).get("mode", "none")
    if stacking not in ("none", "normal"):
        raise UnknownOption(f"stacking {stacking}")
    edges = (list(_stacked(series)) if stacking == "normal"
             else [[(at, None if value is None else (0, value)) for at, value in one.points] for one in series])
    # If nothing is stacked, an area starts at the bottom, whatever value the axis starts at.
    if stacking == "none":
        bounds = _bounds(field, [[(at, value and (value[1], value[1])) for at, value in points] for points in edges])
    else:
        bounds = _bounds(field, edges)
    lines = _legend([one.name for one in series], left + 12, width - 24)
    labels = [with_unit(value, unit, decimals) for value in ticks(*bounds, unit, decimals)]
    margin = 16 + CHARACTER * max(len(label) for label in labels)
    plot = _Plot(left + margin, top + 8, width - margin - 14, height - 8 - 22 - 17 * len(lines) - 4, time_range, bounds)
    yield from plot.axes(unit, decimals)
    lowest = 0 if stacking == "normal" else bounds[0]
    for number, points in enumerate(edges):
        if stacking == "none":
            points = [(at, value and (lowest, value[1])) for at, value in points]
        colour = PALETTE[number % len(PALETTE)]
        if custom.get("fillOpacity"):
            yield from plot.area(points, colour, custom["fillOpacity"] / 100, lowest)
        yield from plot.line(points, colour, custom.get("lineWidth", 1), custom.get("showPoints", "auto"))
    if custom.get("thresholdsStyle", {}).get("mode", "off") != "off":
        yield from plot.thresholds(field)
    for row, entries in enumerate(lines):
        y = top + height - 10 - 17 * (len(lines) - 1 - row)
        for number, x, name in entries:
            yield f'<path d="M{x:.0f} {y - 4}h14" stroke="{PALETTE[number % len(PALETTE)]}" stroke-width="3"/>'
            yield _text(x + 19, y, name)


def _stat(panel, series, box, time_range):
    left, top, width, height = box
    field, options = panel["fieldConfig"]["defaults"], panel.get("options", {})
    if options.get("reduceOptions", {}).get("calcs", ["lastNotNull"]) != ["lastNotNull"]:
        raise UnknownOption("only the last value of a stat is known")
    mode, colour_mode = options.get("textMode", "auto"), options.get("colorMode", "value")
    if mode not in ("auto", "value", "name", "value_and_name") or colour_mode not in ("value", "background"):
        raise UnknownOption(f"text mode {mode}, colour mode {colour_mode}")
    series = [one for one in series if any(value is not None for _, value in one.points)]
    width /= len(series)
    for number, one in enumerate(series):
        x = left + number * width
        value = [value for _, value in one.points if value is not None][-1]
        colour = _threshold_colour(value, field)
        ink = colour
        if colour_mode == "background":
            ink = "white"
            yield f'<rect x="{x:.0f}" y="{top - 30:.0f}" width="{width:.0f}" height="{height + 30:.0f}" rx="2" fill="{colour}"/>'
        elif options.get("graphMode", "area") == "area" and len(one.points) > 1:
            bounds = _bounds({**field, "max": field.get("max", max(value for _, value in one.points if value is not None) or 1)},
                             [[(at, value is not None and (value, value)) for at, value in one.points]])
            plot = _Plot(x, top + height * 0.66, width, height * 0.34, time_range, bounds)
            edges = [(at, None if value is None else (bounds[0], value)) for at, value in one.points]
            yield from plot.area(edges, colour, 0.12, bounds[0])
            yield from plot.line(edges, colour, 1, "never")
        text = one.name if mode == "name" else with_unit(value, field.get("unit", "short"), field.get("decimals"))
        size = min(34, height * 0.5, (width - 16) / (0.58 * max(1, len(text))))
        yield _text(x + width / 2, top + height * 0.36 + size * 0.2, text, "middle", size, ink, 600)
        if mode == "value_and_name" or (mode == "auto" and len(series) > 1):
            yield _text(x + width / 2, top + height - 6, _cut(one.name, width), "middle", 11, ink)


DRAWN = {"timeseries": _time_series, "stat": _stat}


def _panel(panel, found, corner, width, time_range):
    """Draws a panel. `found` is its series, or the text of an error."""
    place = panel["gridPos"]
    left = corner + place["x"] * (width - GAP) / COLUMNS
    top = HEADER + place["y"] * (CELL_HEIGHT + GAP)
    wide, high = panel_width(panel, width), place["h"] * (CELL_HEIGHT + GAP) - GAP
    if panel["type"] == "row":
        yield _text(left + 4, top + 21, "⌄ " + panel["title"], size=15, weight=600)
        return
    yield f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{high}" rx="2" fill="white" stroke="{GRID}"/>'
    title = _text(left + 10, top + 20, _cut(panel["title"], wide - 20, 7.2), size=13, weight=600)
    box = left, top + 30, wide, high - 30
    if isinstance(found, str):
        yield title
        yield _text(left + wide / 2, top + high / 2, _cut(found, wide - 20), "middle", colour=NAMED_COLOURS["red"])
    elif is_empty(found):
        yield title
        yield _text(left + wide / 2, top + high / 2 + 8, "No data", "middle", 13, FAINT)
    else:
        drawn = list(DRAWN[panel["type"]](panel, found, box, time_range))
        on_colour = panel["type"] == "stat" and panel.get("options", {}).get("colorMode") == "background"
        yield from drawn
        yield title.replace(f'fill="{INK}"', 'fill="white"') if on_colour else title


def draw(dashboard, found, time_range, width, subtitle):
    """Draws the dashboard. `found`: panel id -> its series or the text of its error. A panel that asks for something not drawn here gets an
    error too, which is added to `found`."""
    panels = dashboard["panels"]
    height = HEADER + GAP + max((p["gridPos"]["y"] + p["gridPos"]["h"]) * (CELL_HEIGHT + GAP) for p in panels)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
             f'font-family="Inter, Helvetica, Arial, sans-serif">',
             f'<rect width="{width}" height="{height}" fill="#F4F5F5"/>',
             _text(GAP + 4, 28, dashboard["title"], size=19, weight=600), _text(width - GAP - 4, 28, subtitle, "end", 12, FAINT)]
    for panel in panels:
        try:
            if panel["type"] != "row" and panel["type"] not in DRAWN:
                raise UnknownOption(f"panels of type {panel['type']}")
            if panel.get("fieldConfig", {}).get("overrides") or panel.get("transformations"):
                raise UnknownOption("overrides and transformations")
            drawn = list(_panel(panel, found.get(panel["id"]), GAP, width, time_range))
        except UnknownOption as error:
            found[panel["id"]] = f"not drawn: {error}"
            drawn = list(_panel(panel, found[panel["id"]], GAP, width, time_range))
        parts += drawn
    return "\n".join([*parts, "</svg>"]) + "\n"
