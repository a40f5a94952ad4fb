#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the links of all Markdown files: each relative target, and the heading that it names, must exist.

Prints each broken link as file:line: link: reason; exit status 1 if any. Links to other hosts are
not followed, and links in code are ignored.
"""

import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = {"build"}

FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
INLINE_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
# [text](target) and [text](target "title"); the text may run over several lines.
INLINE_LINK = re.compile(r"\]\(\s*<?([^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s<>]+)>?", re.M)
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$", re.M)
SCHEME = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.I)


def markdown_files():
    for path in sorted(ROOT.rglob("*.md")):
        parts = path.relative_to(ROOT).parts
        if parts[0] not in SKIPPED and not any(part.startswith(".") for part in parts[:-1]):
            yield path


def blank(match):
    """Returns as many lines and characters without links."""
    return re.sub(r"[^\n]", " ", match.group())


def without_fences(text):
    lines, fence = [], None
    for line in text.split("\n"):
        mark = FENCE.match(line)
        if fence is None:
            fence = mark.group(1) if mark else None
            lines.append("" if mark else line)
        else:
            lines.append("")
            if mark and mark.group(1).startswith(fence):
                fence = None
    return "\n".join(lines)


def anchors(text):
    """Returns the ids that GitHub gives to headings."""
    found = {}
    for heading in HEADING.findall(without_fences(text)):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        yield slug if count == 0 else f"{slug}-{count}"


def links(text):
    """Yields pairs of line and target."""
    text = INLINE_CODE.sub(blank, without_fences(text))
    for pattern in (INLINE_LINK, REFERENCE):
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start(1)) + 1, match.group(1)


def offence(file, target):
    if SCHEME.match(target):
        return None
    path, _, anchor = target.partition("#")
    if path.startswith("/"):
        return "must be relative"
    destination = (file.parent / urllib.parse.unquote(path)).resolve() if path else file
    if not destination.is_relative_to(ROOT):
        return "leaves the repository"
    if not destination.exists():
        return "no such file"
    if not anchor or destination.suffix != ".md":
        return None
    if anchor not in set(anchors(destination.read_text(encoding="utf-8"))):
        return "no such heading"
    return None


def main():
    num_links = 0
    found = []
    for file in markdown_files():
        for line, target in links(file.read_text(encoding="utf-8")):
            num_links += 1
            reason = offence(file, target)
            if reason:
                found.append(f"{file.relative_to(ROOT)}:{line}: {target}: {reason}")
    print("\n".join(found) or f"{num_links} links")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
