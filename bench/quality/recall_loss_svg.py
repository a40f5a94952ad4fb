# SPDX-License-Identifier: Apache-2.0
"""Draws the points of recall_loss: a recall on the x axis, accuracy lost on the y axis; a column of panels for each kind of probe, a row for each
of RECALLS, a colour for each plan."""

from xml.sax.saxutils import escape

RECALLS = ("recall", "recall_p01")
WIDTH, HEIGHT, MARGIN, GAP = 260, 180, 46, 30
COLOURS = ["#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#4a4a4a", "#d17ba0", "#2aa198", "#7f5539", "#6c757d"]


def _text(x, y, text, anchor="middle"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _panel(left, top, recall, of_points, colours, most):
    """Draws a panel with the plot's corner at (left, top). Losses range from the least, or 0, to `most`."""
    least = min(0, min(p["accuracy"] for p in of_points))

    def height(loss):
        return top + HEIGHT * (1 - (loss - least) / (most - least))

    parts = [f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
             f'<line x1="{left}" x2="{left + WIDTH}" y1="{height(0):.1f}" y2="{height(0):.1f}" stroke="#999" stroke-dasharray="3"/>',
             _text(left - 4, height(0) + 4, "0", "end"), _text(left - 4, top + 10, f"{100 * most:.0f}", "end"),
             _text(left, top + HEIGHT + 14, "0"), _text(left + WIDTH / 2, top + HEIGHT + 14, recall), _text(left + WIDTH, top + HEIGHT + 14, "1")]
    for point in of_points:
        parts.append(f'<circle cx="{left + WIDTH * point[recall]:.1f}" cy="{height(point["accuracy"]):.1f}" r="3" '
                     f'fill="{colours[point["plan"]]}" fill-opacity="0.6"/>')
    return parts


def draw(of_points):
    kinds, plans = sorted({p["kind"] for p in of_points}), sorted({p["plan"] for p in of_points})
    colours = {plan: COLOURS[number % len(COLOURS)] for number, plan in enumerate(plans)}
    most = max(0.1, max(p["accuracy"] for p in of_points))
    width = MARGIN + len(kinds) * (WIDTH + GAP)
    legend = MARGIN + len(RECALLS) * (HEIGHT + GAP) + 16
    height = legend + 16 * len(plans)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>', _text(MARGIN, 16, "points of accuracy lost by a prompt", "start")]
    for column, kind in enumerate(kinds):
        left = MARGIN + column * (WIDTH + GAP)
        parts.append(_text(left + WIDTH / 2, MARGIN - 8, kind))
        for row, recall in enumerate(RECALLS):
            parts += _panel(left, MARGIN + row * (HEIGHT + GAP), recall, [p for p in of_points if p["kind"] == kind], colours, most)
    for number, plan in enumerate(plans):
        y = legend + 16 * number
        parts += [f'<circle cx="{MARGIN + 6}" cy="{y - 4}" r="4" fill="{colours[plan]}"/>', _text(MARGIN + 16, y, plan, "start")]
    return "\n".join([*parts, "</svg>"]) + "\n"
