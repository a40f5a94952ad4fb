#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every file that states Millrace's version states the one in the file VERSION.

CMake and deploy/containers/build read VERSION themselves. The places in PLACES cannot, and repeat it. The C interface
has a number of its own, in sdk/include/millrace/millrace_kv.h, which the shared library and the Python package repeat.
Prints each place that differs as file:line: reason; exit status 1 if any. --write changes those that repeat VERSION.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUMBER = r"\d+\.\d+\.\d+"

# File or pattern of files, how the version stands there, and how often at least.
PLACES = [
    ("sdk/python/millrace_kv/_version.py", rf'^VERSION = "({NUMBER})"', 1),
    ("docs/openapi.yaml", rf"^  version: ({NUMBER})$", 1),
    ("docs/openapi.yaml", rf'millrace_build_info\{{version="({NUMBER})"\}}', 1),
    ("docs/openapi.yaml", rf"\{{version: ({NUMBER})\}}", 1),
    ("deploy/kubernetes/**/kustomization.yaml", rf"newTag: ({NUMBER})-(?:cpu|cuda)", 1),
    ("*", rf"\bmillrace:({NUMBER})-(?:cpu|cuda)", 1),
    ("docs/**/*.md", rf"newTag: ({NUMBER})-(?:cpu|cuda)", 1),
]

# The newest heading of the changelog is that of VERSION.
CHANGELOG = re.compile(rf"^## \[({NUMBER})\]", re.M)


def tracked():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return [pathlib.PurePosixPath(name) for name in filter(None, listed.stdout.decode().split("\0"))]


def read(path):
    """Returns a file's text, or nothing if it has none."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
        return ""


def matches(path, pattern):
    if pattern == "*":
        return not path.is_relative_to("bench/results")
    folder, _, name = pattern.partition("**/")
    return path.is_relative_to(folder) and path.match(name) if name else str(path) == pattern


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def places(files):
    """Yields path, line, version and pattern of each place; for a pattern without enough places the path is None."""
    texts = {path: read(path) for path in files}
    for glob, pattern, least in PLACES:
        found = 0
        for path, text in texts.items():
            if not matches(path, glob):
                continue
            for match in re.finditer(pattern, text, re.M):
                found += 1
                yield path, line_of(text, match.start(1)), match.group(1), pattern
        if found < least:
            yield None, 0, glob, pattern


def write(version, files):
    for glob, pattern, _ in PLACES:
        for path in (path for path in files if matches(path, glob)):
            text = read(path)
            new = re.sub(pattern, lambda match: match.group().replace(match.group(1), version), text, flags=re.M)
            if new != text:
                (ROOT / path).write_text(new, encoding="utf-8")


def c_interface_offences():
    header = read("sdk/include/millrace/millrace_kv.h")
    number = tuple(re.search(rf"^#define MKV_VERSION_{part} (\d+)$", header, re.M).group(1)
                   for part in ("MAJOR", "MINOR"))
    major = number[0]
    for path, pattern, expected in (
        ("sdk/CMakeLists.txt", r"VERSION (\d+)\.(\d+) SOVERSION (\d+)", (*number, major)),
        ("sdk/python/millrace_kv/_library.py", r"^VERSION_MAJOR, VERSION_MINOR = (\d+), (\d+)$", number),
    ):
        text = read(path)
        match = re.search(pattern, text, re.M)
        if match is None:
            yield f"{path}:1: states no version of the C interface"
        elif match.groups() != expected:
            yield (f"{path}:{line_of(text, match.start())}: {match.group()}; sdk/include/millrace/millrace_kv.h has "
                   f"{'.'.join(number)}")


def main():
    version = read("VERSION").strip()
    if not re.fullmatch(NUMBER, version):
        print(f"VERSION:1: {version!r} is not MAJOR.MINOR.PATCH")
        return 1
    files = tracked()
    if sys.argv[1:] == ["--write"]:
        write(version, files)
    found = []
    count = 0
    for path, line, stated, pattern in places(files):
        count += 1
        if path is None:
            found.append(f"{stated}:1: no place matches {pattern}")
        elif stated != version:
            found.append(f"{path}:{line}: {stated}, but VERSION is {version}")
    heading = CHANGELOG.search(read("CHANGELOG.md"))
    if heading is None or heading.group(1) != version:
        found.append(f"CHANGELOG.md:1: the first release is {heading and heading.group(1)}, but VERSION is {version}")
    found.extend(c_interface_offences())
    print("\n".join(found) or f"{version} in {count} places")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
