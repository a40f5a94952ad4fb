# SPDX-License-Identifier: Apache-2.0
"""Draws a trace as an SVG: a row for each span, its parts below it, with a bar from its begin to its end and a tick for each event."""
from xml.sax.saxutils import escape

_COLOURS = "#4878cf", "#6acc65", "#d65f5f", "#b47cc7", "#c4ad66", "#77bedb"
_ROW, _BAR, _TOP, _NAMES, _RIGHT = 22, 14, 46, 330, 90


def in_order(spans):
    """Pairs of depth and span: each span before its parts, and those by their begin."""
    ids = {span.span_id for span in spans}
    parts = {}
    for span in sorted(spans, key=lambda span: (span.begin_s, -span.end_s)):
        parts.setdefault(span.parent_id if span.parent_id in ids else "", []).append(span)

    def below(parent, depth):
        for span in parts.get(parent, []):
            yield depth, span
            yield from below(span.span_id, depth + 1)
    return list(below("", 0))


def text_of(time_s):
    return f"{time_s:.2f} s" if time_s >= 1 else f"{time_s * 1e3:.1f} ms"


def _text(x, y, text, size=12, anchor="start", colour="#222"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _step(span_s):
    """A round number of seconds, of which some five to ten are in `span_s`."""
    step = 10.0 ** -6
    while True:
        for factor in 1, 2, 5:
            if span_s / (step * factor) <= 10:
                return step * factor
        step *= 10


def draw(spans, width=1100):
    """The spans of one trace."""
    rows = in_order(spans)
    services = list(dict.fromkeys(span.service for _, span in rows))
    colour = {service: _COLOURS[at % len(_COLOURS)] for at, service in enumerate(services)}
    begin = min(span.begin_s for span in spans)
    whole = max(max(span.end_s for span in spans) - begin, 1e-6)
    height = _TOP + _ROW * len(rows) + 8

    def x(at_s):
        return _NAMES + (at_s - begin) / whole * (width - _NAMES - _RIGHT)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif">',
           f'<rect width="{width}" height="{height}" fill="#fff"/>']
    left = 10
    for service in services:
        out += [f'<rect x="{left}" y="9" width="11" height="11" fill="{colour[service]}"/>', _text(left + 16, 19, service)]
        left += 34 + 7 * len(service)
    step = _step(whole)
    for at in range(int(whole / step) + 1):
        place = x(begin + at * step)
        out += [f'<line x1="{place:.1f}" y1="{_TOP - 6}" x2="{place:.1f}" y2="{height - 8}" stroke="#ddd"/>',
                _text(place, _TOP - 10, text_of(at * step), 10, "middle", "#777")]
    for row, (depth, span) in enumerate(rows):
        top = _TOP + row * _ROW
        first, last = x(span.begin_s), x(span.end_s)
        failure = f' ({span.attributes.get("error.type", "failed")})' if span.failed else ""
        out += [_text(10 + 16 * depth, top + 12, span.name + failure, colour="#b00" if span.failed else "#222"),
                f'<rect x="{first:.1f}" y="{top + 1}" width="{max(last - first, 1):.1f}" height="{_BAR}" fill="{colour[span.service]}"/>']
        out += [f'<line x1="{x(at):.1f}" y1="{top + 1}" x2="{x(at):.1f}" y2="{top + 1 + _BAR}" stroke="#fff"/>' for at, _, _ in span.events]
        out.append(_text(last + 6, top + 12, text_of(span.end_s - span.begin_s), 11, colour="#555"))
    return "\n".join([*out, "</svg>"]) + "\n"
