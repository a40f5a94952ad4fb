"""The points of recall_loss as a picture: recall to the right, accuracy lost upwards, a panel for each kind of probe, a colour for each plan."""

from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN, GAP = 260, 200, 46, 30
COLOURS = ["#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#4a4a4a", "#d17ba0", "#2aa198", "#7f5539", "#6c757d"]


def _text(x, y, text, anchor="middle"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _panel(left, top, kind, of_points, colours, most):
    """The plot's corner is (left, top); losses from -0.2, or the least of 0, to `most`."""
    least = min(0, min(p["accuracy"] for p in of_points))

    def place(point):
        return left + WIDTH * point["recall"], top + HEIGHT * (1 - (point["accuracy"] - least) / (most - least))

    zero = top + HEIGHT * (1 + least / (most - least))
    parts = [f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
             f'<line x1="{left}" x2="{left + WIDTH}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="#999" stroke-dasharray="3"/>',
             _text(left + WIDTH / 2, top - 8, kind), _text(left - 4, zero + 4, "0", "end"), _text(left - 4, top + 10, f"{100 * most:.0f}", "end"),
             _text(left, top + HEIGHT + 14, "0"), _text(left + WIDTH, top + HEIGHT + 14, "recall 1")]
    for point in of_points:
        x, y = place(point)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[point["plan"]]}" fill-opacity="0.6"/>')
    return parts


def draw(of_points):
    kinds, plans = sorted({p["kind"] for p in of_points}), sorted({p["plan"] for p in of_points})
    colours = {plan: COLOURS[number % len(COLOURS)] for number, plan in enumerate(plans)}
    most = max(0.1, max(p["accuracy"] for p in of_points))
    width = MARGIN + len(kinds) * (WIDTH + GAP)
    height = 2 * MARGIN + HEIGHT + 16 * len(plans)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>', _text(MARGIN, 16, "points of accuracy lost by a prompt", "start")]
    for number, kind in enumerate(kinds):
        parts += _panel(MARGIN + number * (WIDTH + GAP), MARGIN, kind, [p for p in of_points if p["kind"] == kind], colours, most)
    for number, plan in enumerate(plans):
        y = 2 * MARGIN + HEIGHT + 16 * number
        parts += [f'<circle cx="{MARGIN + 6}" cy="{y - 4}" r="4" fill="{colours[plan]}"/>', _text(MARGIN + 16, y, plan, "start")]
    return "\n".join([*parts, "</svg>"]) + "\n"
