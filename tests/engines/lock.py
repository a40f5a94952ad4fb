#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes requirements.txt: every package of requirements.in and all that they require, in one version each, with hashes.

    lock.py /usr/bin/python3.11 python3.12

The first interpreter decides on the versions. The hashes are of all files that the interpreters would install on this kind of machine."""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def asked_for():
    alone, others = [], []
    with open(os.path.join(HERE, "requirements.in")) as file:
        for line in file:
            words = line.split("#")[0].split()
            if words:
                (alone if words[0] == "alone" else others).append(words[-1])
    return alone, others


def resolved(python, packages, *options):
    """Yields ((name, version), hash) of each package that pip would install."""
    report = subprocess.run([python, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", "-",
                             *options, *packages], check=True, stdout=subprocess.PIPE).stdout
    for item in json.loads(report)["install"]:
        name = item["metadata"]["name"].lower().replace("_", "-")
        yield (name, item["metadata"]["version"]), item["download_info"]["archive_info"]["hash"].replace("=", ":")


def main():
    first, *others = sys.argv[1:]
    alone, rest = asked_for()
    hashes = {package: {digest} for package, digest in resolved(first, alone, "--no-deps")}
    for package, digest in resolved(first, rest):
        hashes.setdefault(package, {digest})
    pins = [f"{name}=={version}" for name, version in hashes]
    for python in others:
        for package, digest in resolved(python, pins, "--no-deps"):
            hashes[package].add(digest)
    with open(os.path.join(HERE, "requirements.txt"), "w") as file:
        file.write("# Made by lock.py of requirements.in; to be installed with --no-deps --require-hashes.\n")
        for (name, version), digests in sorted(hashes.items()):
            file.write(f"{name}=={version}" + "".join(f" \\\n    --hash={digest}" for digest in sorted(digests)) + "\n")


if __name__ == "__main__":
    main()
