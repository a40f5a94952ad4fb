# SPDX-License-Identifier: Apache-2.0
"""Draws lines over two logarithmic axes as SVG."""

import dataclasses
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 220, 46, 56
COLOURS = ("#1f5fa8", "#c8552b", "#2c8a4b", "#7a4ea3", "#8a6d1f", "#555555")
DASHES = ("", "7 4", "2 3", "9 3 2 3")
FONT = "font-family='sans-serif'"


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
        return [step * 10.0**power for power in range(first, last + 1) for step in steps
                if self.low <= step * 10.0**power <= self.high]


def text(x, y, words, anchor="middle", size=13, more=""):
    return f"<text x='{x:.1f}' y='{y:.1f}' {FONT} font-size='{size}' text-anchor='{anchor}' fill='#222222'{more}>{escape(words)}</text>"


def number(value):
    return f"{value:g}"


def spread(places, least):
    """Returns the places, in their order, moved down as far as needed to be `least` apart."""
    moved, last = {}, -math.inf
    for index, place in sorted(enumerate(places), key=lambda pair: pair[1]):
        last = max(place, last + least)
        moved[index] = last
    return [moved[index] for index in range(len(places))]


def chart(title, x_name, y_name, lines, x_ticks):
    """`x_ticks`: pairs of value and label. Returns the picture's text."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x_axis = Axis([x for line in lines for x, _ in line.points], LEFT, right, 1.15)
    y_axis = Axis([y for line in lines for _, y in line.points], bottom, TOP, 1.25)
    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' role='img'>",
             f"<title>{escape(title)}</title>", f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#ffffff'/>",
             text(LEFT, 26, title, "start", 15, " font-weight='bold'")]
    for value in y_axis.decades():
        y = y_axis.at(value)
        parts += [f"<line x1='{LEFT}' y1='{y:.1f}' x2='{right}' y2='{y:.1f}' stroke='#dddddd'/>", text(LEFT - 8, y + 4, number(value), "end")]
    for value, label in x_ticks:
        x = x_axis.at(value)
        parts += [f"<line x1='{x:.1f}' y1='{TOP}' x2='{x:.1f}' y2='{bottom}' stroke='#eeeeee'/>", text(x, bottom + 18, label)]
    parts += [f"<rect x='{LEFT}' y='{TOP}' width='{right - LEFT}' height='{bottom - TOP}' fill='none' stroke='#888888'/>",
              text((LEFT + right) / 2, HEIGHT - 14, x_name),
              text(20, (TOP + bottom) / 2, y_name, "middle", 13, f" transform='rotate(-90 20 {(TOP + bottom) / 2:.1f})'")]
    named = [line for line in lines if line.name]
    labels = dict(zip(map(id, named), spread([y_axis.at(line.points[-1][1]) for line in named], 17)))
    for line in lines:
        colour = COLOURS[line.colour % len(COLOURS)]
        places = [(x_axis.at(x), y_axis.at(y)) for x, y in line.points]
        dash = DASHES[line.dash % len(DASHES)]
        dash = f" stroke-dasharray='{dash}'" if dash else ""
        width = 2 if line.marks else 1
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='{width}'{dash}/>")
        if line.marks:
            parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'/>" for x, y in places]
        if not line.name:
            continue
        (x, y), label_y = places[-1], labels[id(line)]
        parts += [f"<line x1='{x + 5:.1f}' y1='{y:.1f}' x2='{right + 8}' y2='{label_y:.1f}' stroke='{colour}' stroke-width='0.7'/>",
                  f"<text x='{right + 12}' y='{label_y + 4:.1f}' {FONT} font-size='13' fill='{colour}'>{escape(line.name)}</text>"]
    return "\n".join([*parts, "</svg>"]) + "\n"
