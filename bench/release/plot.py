# SPDX-License-Identifier: Apache-2.0
"""Draws lines over two logarithmic axes as SVG."""

import dataclasses
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 220, 46, 56
COLOURS = ("#1f5fa8", "#c8552b", "#2c8a4b", "#7a4ea3", "#8a6d1f", "#555555")
DASHES = ("", "7 4", "2 3", "9 3 2 3")


@dataclasses.dataclass
class Line:
    name: str  # written at its end; empty: none
    points: list  # of (x, y), in order of x
    dash: int = 0
    colour: int = 0
    marks: bool = True


class Axis:
    def __init__(self, values, begin, end, margin):
        # Room of a tenth of a decade at both ends, so that no mark lies on the frame.
        self.low, self.high = min(values) / margin, max(values) * margin
        self.begin, self.end = begin, end

    def at(self, value):
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def decades(self):
        """Returns 1, 2 and 5 times every power of ten on the axis; only the powers if they are many."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = (1, 2, 5) if self.high / self.low < 2000 else (1,)
        return [
            step * 10.0**power
            for power in range(first, last + 1)
            for step in steps
            if self.low <= step * 10.0**power <= self.high
        ]


def tag(name, body=None, **attributes):
    """Returns an element; `_` in attributes' names stands for `-`, and numbers have one digit after the point."""
    parts = [name]
    for key, value in attributes.items():
        value = f"{value:.1f}" if isinstance(value, float) else value
        parts.append(f"{key.replace('_', '-')}='{value}'")
    return f"<{' '.join(parts)}/>" if body is None else f"<{' '.join(parts)}>{body}</{name}>"


def text(x, y, words, anchor="middle", size=13, fill="#222222", **more):
    place = {"x": float(x), "y": float(y), "font_family": "sans-serif", "font_size": size, "text_anchor": anchor}
    return tag("text", escape(words), **place, fill=fill, **more)


def segment(x1, y1, x2, y2, stroke, width=1.0):
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), stroke=stroke, stroke_width=width)


def number(value):
    return f"{value:g}"


def spread(places, least):
    """Returns the places, in their order, moved down as far as needed to be `least` apart."""
    moved, last = {}, -math.inf
    for index, place in sorted(enumerate(places), key=lambda pair: pair[1]):
        last = max(place, last + least)
        moved[index] = last
    return [moved[index] for index in range(len(places))]


def drawn(line, places, label_y, right):
    """Returns the elements of a line, its marks, and its name behind the frame."""
    colour = COLOURS[line.colour % len(COLOURS)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = {"fill": "none", "stroke": colour, "stroke_width": 2 if line.marks else 1}
    if DASHES[line.dash % len(DASHES)]:
        style["stroke_dasharray"] = DASHES[line.dash % len(DASHES)]
    parts = [tag("polyline", points=points, **style)]
    if line.marks:
        parts += [tag("circle", cx=x, cy=y, r=3.5, fill=colour) for x, y in places]
    if line.name:
        x, y = places[-1]
        parts.append(segment(x + 5, y, right + 8, label_y, colour, 0.7))
        parts.append(text(right + 12, label_y + 4, line.name, "start", fill=colour))
    return parts


def chart(title, x_name, y_name, lines, x_ticks):
    """`x_ticks`: pairs of value and label. Returns the picture's text."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x_axis = Axis([x for line in lines for x, _ in line.points], LEFT, right, 1.15)
    y_axis = Axis([y for line in lines for _, y in line.points], bottom, TOP, 1.25)
    middle = (TOP + bottom) / 2
    parts = [
        tag("title", escape(title)),
        tag("rect", width=WIDTH, height=HEIGHT, fill="#ffffff"),
        text(LEFT, 26, title, "start", 15, font_weight="bold"),
        text((LEFT + right) / 2, HEIGHT - 14, x_name),
        text(20, middle, y_name, transform=f"rotate(-90 20 {middle:.1f})"),
    ]
    for value in y_axis.decades():
        y = y_axis.at(value)
        parts += [segment(LEFT, y, right, y, "#dddddd"), text(LEFT - 8, y + 4, number(value), "end")]
    for value, label in x_ticks:
        x = x_axis.at(value)
        parts += [segment(x, TOP, x, bottom, "#eeeeee"), text(x, bottom + 18, label)]
    parts.append(tag("rect", x=LEFT, y=TOP, width=right - LEFT, height=bottom - TOP, fill="none", stroke="#888888"))
    named = [line for line in lines if line.name]
    labels = dict(zip(map(id, named), spread([y_axis.at(line.points[-1][1]) for line in named], 17)))
    for line in lines:
        places = [(x_axis.at(x), y_axis.at(y)) for x, y in line.points]
        parts += drawn(line, places, labels.get(id(line)), right)
    size = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": WIDTH, "height": HEIGHT}
    return tag("svg", "\n" + "\n".join(parts) + "\n", xmlns="http://www.w3.org/2000/svg", **size, role="img") + "\n"
