#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wraps Markdown where lines are longer than tools/check_docs.py allows: tools/wrap_docs.py FILE...

Fills paragraphs and list items that have a longer line, and makes a list of each table that has a longer row: the first
cell, then the others. Leaves all else as it is. A table that continues a cell from the row above, or one of figures, is
for a person to shorten: it is named, and stays.
"""

import pathlib
import re
import sys

from check_docs import FENCE, MAX_COLUMNS

ITEM = re.compile(r"^( *)(?:[-*+]|\d+\.) +")
# What would be markup at the beginning of a line.
MARKUP = re.compile(r"^(?:[-+*>=]+|\d+\.|#+|\|.*)$")
# Words, of which code is not broken.
TOKEN = re.compile(r"(?:`[^`]*`|[^\s`])+|`")
CELL = re.compile(r"(?<!\\)\|")
ALONE = ("|", "#", "<", "![")
# From this length on the parts of an item have lines of their own.
LONG_ITEM = 480
FIGURE = re.compile(r"^[-+±\d., %*]*$")


def tokens(text):
    found = []
    for word in TOKEN.findall(text):
        if found and MARKUP.match(word):
            found[-1] += " " + word
        else:
            found.append(word)
    return found


def filled(text, first, rest):
    """Returns the text's lines; `first` and `rest` begin the first and all further ones."""
    lines, begun = [first], False
    for word in tokens(text):
        if begun and len(lines[-1]) + 1 + len(word) > MAX_COLUMNS:
            lines.append(rest + word)
        else:
            lines[-1] += (" " if begun else "") + word
        begun = True
    return lines


def wrapped_block(block):
    if all(len(line) <= MAX_COLUMNS for line in block):
        return block
    marker = ITEM.match(block[0])
    first = marker.group() if marker else re.match(r" *", block[0]).group()
    body = " ".join([block[0][len(first) :], *(line.strip() for line in block[1:])])
    return filled(body, first, " " * len(first))


def parts_of(head, cells):
    """Returns what an item says of a row: the first cell, and the others with their columns' names."""
    first, *rest = cells
    if len(rest) == 2 and head[1] in ("default", "type"):
        if rest[0]:
            said = f"default: {rest[0]}" if head[1] == "default" and rest[0] != "required" else rest[0]
            first += f" ({said})"
        rest = rest[1:]
    if len(rest) == 1:
        return [f"{first}: {rest[0]}" if rest[0] else first]
    return [first, *(f"*{name}*: {cell}" if name else cell for name, cell in zip(head[1:], rest) if cell)]


def list_of(table):
    """Returns the table's rows as a list, or None if they would not read well."""
    rows = [[cell.strip().replace("\\|", "|") for cell in CELL.split(line.strip())[1:-1]] for line in table]
    head, rows = rows[0], rows[2:]
    if any(not cells[0] or len(cells) != len(head) for cells in rows):
        return None
    of_figures = sum(all(FIGURE.match(cell) for cell in cells[2:]) for cells in rows if any(cells[2:]))
    if len(head) > 2 and of_figures > len(rows) / 2:
        return None
    items = [parts_of(head, cells) for cells in rows]
    if max(len(". ".join(parts)) for parts in items) < LONG_ITEM:
        return [line for parts in items for line in filled(". ".join(parts), "- ", "  ")]
    return [
        line
        for first, *rest in items
        for line in [*filled(first, "- ", "  "), *(line for part in rest for line in filled(part, "  - ", "    "))]
    ]


def wrapped(text, name):
    out, block, table, fence = [], [], [], None

    def flush():
        out.extend(wrapped_block(block) if block else [])
        block.clear()

    def flush_table():
        made = list_of(table) if any(len(line) > MAX_COLUMNS for line in table) else table
        if made is None:
            print(f"{name}: a table is too wide: {table[0]}")
            made = table
        out.extend(made)
        table.clear()

    for line in text.split("\n"):
        mark = FENCE.match(line)
        if fence:
            out.append(line)
            fence = None if mark and mark.group(1).startswith(fence) else fence
            continue
        if table and not line.startswith("|"):
            flush_table()
        if line.startswith("|"):
            flush()
            table.append(line)
        elif mark or not line.strip() or line.strip().startswith(ALONE):
            flush()
            fence = mark.group(1) if mark else None
            out.append(line)
        else:
            if ITEM.match(line):
                flush()
            block.append(line)
    flush()
    if table:
        flush_table()
    return "\n".join(out)


def main():
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        text = path.read_text(encoding="utf-8")
        changed = wrapped(text, name)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
