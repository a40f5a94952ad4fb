#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small retrieval check for CI: sparse plans must still find what queries in the middle of a prompt ask for, and a window must not.

    check_retrieval.py --batch build/release/bin/millrace-batch

bench/retrieval has the full tables. Standard library only. Exit status 0 when all hold.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

# (mode, plan, least and most share of right answers to the middle queries, most density). 4,096 tokens, 4 prompts, 32 queries. The
# bounds leave room for two unusual prompts; the tables of bench/results have the real figures.
CASES = [
    ("all", "dense", 0.95, 1.0, 1.0),
    ("all", "adaptive", 0.9, 1.0, 0.3),  # 24 sampled rows reach 0.256
    ("all", "a-shape:64,256", 0.0, 0.4, 0.25),
    ("one", "vertical-slash:256,100", 0.95, 1.0, 0.25),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", required=True)
    args = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as directory:
        for mode, plan, least, most, most_density in CASES:
            prompts = os.path.join(directory, f"{mode}.jsonl")
            output = os.path.join(directory, f"{mode} {plan}")
            with open(prompts, "w") as file:
                subprocess.run([sys.executable, os.path.join(HERE, "make_prompts.py"), "--tokens", "4096", "--mode", mode,
                                "--count", "4", "--max-tokens", "1", "--seed", "5"], stdout=file, check=True)
            subprocess.run([args.batch, "--model", os.path.join(HERE, "fixture"), "--input", prompts, "--output",
                            output, "--head-plan", plan, "--crossover-tokens", "0"], check=True,
                           stdout=subprocess.DEVNULL)
            scored = json.loads(subprocess.run(
                [sys.executable, os.path.join(HERE, "score_retrieval.py"), "--prompts", prompts, "--results",
                 os.path.join(output, "results.jsonl"), "--json"], stdout=subprocess.PIPE, check=True).stdout)
            right, density = scored["middle_first_digit"], scored["mean_density"]
            held = (least <= right <= most and density <= most_density and scored["end_first_digit"] == 1.0
                    and scored["failed"] == 0)
            good = good and held
            print(f"{mode} {plan}: {right:.2f} right in the middle, {scored['end_first_digit']:.2f} at the end, density "
                  f"{density:.3f}: {'ok' if held else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
