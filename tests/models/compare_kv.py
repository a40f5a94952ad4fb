#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one needle prompt on several grids and compares their generated tokens and their KV with the first grid's.

    compare_kv.py --batch build/release/bin/millrace-batch --tokens 131072 --grids 1x1 1x4 2x2 [--head-plan PLAN]
                  [--dtype float32|bfloat16|float16] [--device cpu|cuda] [--rows 1024]

A grid is TPxCP. All must generate the same tokens, the ones that the prompt asks for, and give the same answers in its middle. K and V are read
from the files of --kv save at --rows tokens all over the prompt. The allowed difference is measured: the first grid also runs the same model with
its sums in other orders (reordered_model.py), and other grids may differ by twice as much as the one that differs most. Standard library only. Exit status 0 when all hold,
77 when --device cuda finds no GPU.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time

from check_golden import SKIPPED, KvFiles, mpirun
from reordered_model import ORDERS, write_reordered

HERE = os.path.dirname(os.path.abspath(__file__))

# The distance of a row of K or V (one token and head): norm of the difference over norm of the row. If scores choose nothing (a dense plan), no row
# may be more than twice as far apart as the worst row of the same model in another order. If they do, rounding tips some choices between nearly
# equal candidates, and rows that follow another choice may be further apart than this. Of these there may be twice as many as in another order,
# plus NOISE_ROWS. One tipped choice changes all rows of a tile and what follows, so the number varies from order to order: the largest counts.
#
# Two values that were rounded independently are 2^-8 / sqrt(6) = 0.0016 apart. A layer rounds a row five times (two norms, attention, SiLU, K or
# V), and the residual stream carries this through five layers: sqrt(5 * 5) * 0.0016 = 0.008 if every rounding differed, and twice that for the
# worst row of thousands. float16 rounds 2^3 times finer and float32 2^16 times, but sums over a prompt add up as many of its roundings.
MOST_APART = {"float32": 1e-4, "bfloat16": 0.016, "float16": 0.002}
# What is seen in none of n rows may, at 95 % confidence, occur in 3 of another n.
NOISE_ROWS = 3


def make_prompt(args, directory):
    path = os.path.join(directory, "prompts.jsonl")
    with open(path, "w") as file:
        subprocess.run([sys.executable, os.path.join(HERE, "make_prompts.py"), "--tokens", str(args.tokens), "--records", "8",
                        "--queries", "16", "--mode", "all", "--count", "1", "--max-tokens", "4", "--seed", "2026"],
                       stdout=file, check=True)
    with open(path) as file:
        return path, json.loads(file.readline())


class GridRun:
    """The prompt on one grid."""

    def __init__(self, args, grid, prompts, directory, order=None):
        self.name = f"{grid} {order}" if order else grid
        tp, cp = (int(side) for side in grid.split("x"))
        output = os.path.join(directory, self.name.replace(" ", "-"))
        model = args.model
        if order:
            model = os.path.join(directory, order)
            write_reordered(args.model, model, order)
        start = time.time()
        subprocess.run(mpirun(tp * cp) + [args.batch, "--model", model, "--input", prompts, "--output", output, "--tp", str(tp),
                                          "--cp", str(cp), "--head-plan", args.head_plan, "--dtype", args.dtype, "--device",
                                          args.device, "--kv", "save", "--crossover-tokens", "0"],
                       check=True, stdout=subprocess.DEVNULL)
        self.seconds = time.time() - start
        with open(os.path.join(output, "results.jsonl")) as file:
            self.result = json.loads(file.readline())
        assert self.result["status"] == "ok", self.result
        self.kv = KvFiles(os.path.join(output, "kv", self.result["id"]))

    def rows(self, kind, layer, config, tokens):
        for head in range(config["num_key_value_heads"]):
            for token in tokens:
                yield self.kv.values(kind, layer, head, token, 0, config["head_dim"])


def apart(a, b):
    difference = sum((x - y) ** 2 for x, y in zip(a, b))
    return math.sqrt(difference / sum(x * x for x in a)) if difference else 0.0


class Comparison:
    """The comparison of two runs: the tokens, and the distances of KV rows."""

    def __init__(self, args, config, prompt, first, run):
        # The stride shares no factor with stripes, so that the rows are of all ranks and from all places in a stripe.
        tokens = range(0, args.tokens, max(1, args.tokens // args.rows) | 1)
        self.worst, self.where, self.beyond, self.same, self.count = 0.0, "nowhere", 0, 0, 0
        for layer in range(config["num_hidden_layers"]):
            for kind in ("k", "v"):
                for own, other in zip(first.rows(kind, layer, config, tokens), run.rows(kind, layer, config, tokens)):
                    distance = apart(own, other)
                    if distance > self.worst:
                        self.worst, self.where = distance, f"{kind} of layer {layer}"
                    self.beyond += distance > MOST_APART[args.dtype]
                    self.same += distance == 0
                    self.count += 1
        self.answers = {"generated": run.result["generated_token_ids"] == first.result["generated_token_ids"],
                        "right": run.result["generated_token_ids"] == prompt["answer_token_ids"],
                        "middle": run.result["probe_token_ids"] == first.result["probe_token_ids"]}

    def good(self, args, limit):
        if not all(self.answers.values()):
            return False
        if limit is None:
            return True
        return (self.worst if args.head_plan == "dense" else self.beyond) <= limit


def limit_of(args, controls):
    """The distance of a row, or of sparse plans the number of rows, that is allowed."""
    if args.head_plan == "dense":
        return 2 * max(control.worst for control in controls)
    return 2 * max(control.beyond for control in controls) + NOISE_ROWS


def report(args, first, run, comparison, limit):
    c = comparison
    limits = "the measure of the others"
    if limit is not None:
        limits = f"{limit:.2g} allowed" if args.head_plan == "dense" else f"{limit} rows allowed"
    good = c.good(args, limit)
    print(f"{args.device} {args.dtype} {args.head_plan} {args.tokens} tokens, {run.name} against {first.name}: tokens "
          f"{'same and right' if all(c.answers.values()) else f'DIFFER {c.answers}'}; of {c.count} rows of KV {c.same / c.count:.1%} equal, "
          f"{c.beyond} ({c.beyond / c.count:.2%}) further apart than {MOST_APART[args.dtype]}, worst {c.worst:.2g} in {c.where} ({limits}); density "
          f"{run.result['density']:.5f} and {first.result['density']:.5f}; {run.seconds:.1f} s: {'ok' if good else 'FAILED'}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", required=True)
    parser.add_argument("--model", default=os.path.join(HERE, "fixture"))
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--grids", nargs="+", default=["1x1", "1x4", "2x2"])
    parser.add_argument("--head-plan", default="dense")
    parser.add_argument("--dtype", choices=sorted(MOST_APART), default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=1024, help="tokens whose K and V are compared")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not os.path.exists("/dev/nvidiactl"):
        print("skipped: no GPU")
        return SKIPPED
    with open(os.path.join(args.model, "config.json")) as file:
        config = json.load(file)
    with tempfile.TemporaryDirectory() as directory:
        prompts, prompt = make_prompt(args, directory)
        first = GridRun(args, args.grids[0], prompts, directory)
        good, controls = True, []
        for order in ORDERS:
            run = GridRun(args, args.grids[0], prompts, directory, order)
            controls.append(Comparison(args, config, prompt, first, run))
            good &= report(args, first, run, controls[-1], None)
        limit = limit_of(args, controls)
        for grid in args.grids[1:]:
            run = GridRun(args, grid, prompts, directory)
            good &= report(args, first, run, Comparison(args, config, prompt, first, run), limit)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
