#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks whether the default head plan keeps its promises on a real model: a short bench/quality/run, compared with limits.

    check_quality.py --bin build/release/bin [--plan auto] [--count 3] [--output DIR]

Exit status 0 when all hold, 77 without a model (tests/models/real/real_model.py).
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

TOKENS = 4096
MOST_DENSITY = 0.20


class Limit:
    """A limit on a mean over probes. By chance the mean may exceed it by two standard errors, but by no more than `allowance`: a plan that fails on
    one prompt and not on another has a large error, and must not pass because of it."""

    def __init__(self, field, least=-math.inf, most=math.inf, allowance=0.0):
        self.field, self.least, self.most, self.allowance = field, least, most, allowance

    def holds(self, kind, scores):
        mean, error = scores[self.field]["mean"], scores[self.field]["error"] or 0.0
        allowed = min(2 * error, self.allowance)
        held = self.least - allowed <= mean <= self.most + allowed
        bound = f"at least {self.least:g}" if self.most == math.inf else f"at most {self.most:g}"
        print(f"{kind}: {self.field} {mean:.3f} ± {error:.3f}, {bound} (and {allowed:.3f} by chance): {'ok' if held else 'FAILED'}")
        return held


# Accuracy may be 2 points below dense attention's; for keys 5 points, because a prompt has only a dozen first digits of them. Each allowance is
# the error over three prompts when a plan does as well as dense attention on each.
LIMITS = [
    ("text", Limit("accuracy_to_dense", least=-0.02, allowance=0.02)),
    ("paragraph copy", Limit("accuracy_to_dense", least=-0.02, allowance=0.03)),
    ("word list", Limit("accuracy_to_dense", least=-0.02, allowance=0.04)),
    ("key, first digit", Limit("accuracy_to_dense", least=-0.05, allowance=0.10)),
    ("key, later digits", Limit("accuracy_to_dense", least=-0.05, allowance=0.05)),
    ("text", Limit("agreement", least=0.86, allowance=0.02)),
    ("text", Limit("nll_to_dense", most=0.08, allowance=0.02)),
]


def check(row):
    density = row["density"]["mean"]
    print(f"density {density:.3f}, at most {MOST_DENSITY:g}: {'ok' if density <= MOST_DENSITY else 'FAILED'}")
    held = [limit.holds(kind, row["kinds"][kind]) for kind, limit in LIMITS]
    return density <= MOST_DENSITY and all(held)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--plan", default="auto")
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--output", help="keeps the results, and goes on with those that are there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        output = args.output or directory
        run = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "quality", "run"), "--bin", args.bin, "--output", output,
                              "--tokens", str(TOKENS), "--count", str(args.count), "--plan", args.plan])
        if run.returncode != 0:
            return run.returncode
        with open(os.path.join(output, "table.json")) as file:
            return 0 if check(json.load(file)["rows"][1]) else 1


if __name__ == "__main__":
    sys.exit(main())
