#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that each source begins with the licence's SPDX line: the first line, or the second behind `#!`.

Prints each file that does not; exit status 1 if any. --add writes the line where it is missing.
"""

import pathlib
import subprocess
import sys

LINE = 'SPDX-License-Identifier: Apache-2.0'
COMMENTS = {
    '.cc': '//', '.h': '//', '.cu': '//', '.cuh': '//', '.c': '//', '.proto': '//',
    '.py': '#', '.sh': '#', '.cmake': '#', '.sbatch': '#',
}  # fmt: skip


def comment_mark(path: pathlib.Path, lines: list[str]) -> str | None:
    """How a comment begins in a file, or None if it is not a source."""
    if path.name == 'CMakeLists.txt':
        return '#'
    if path.suffix in COMMENTS:
        return COMMENTS[path.suffix]
    return '#' if not path.suffix and lines and lines[0].startswith('#!') else None


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], cwd=root, check=True, capture_output=True
    )
    missing = 0
    for name in sorted(filter(None, listed.stdout.decode().split('\0'))):
        path = root / name
        if not path.is_file() or path.is_symlink():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        lines = text.splitlines(keepends=True)
        mark = comment_mark(path, lines)
        if mark is None or LINE in ''.join(lines[:2]):
            continue
        if '--add' in sys.argv[1:]:
            first = 1 if lines and lines[0].startswith('#!') else 0
            lines.insert(first, f'{mark} {LINE}\n')
            path.write_text(''.join(lines))
            continue
        print(f'{name}:1: no line "{LINE}"')
        missing += 1
    return 1 if missing else 0


if __name__ == '__main__':
    sys.exit(main())
