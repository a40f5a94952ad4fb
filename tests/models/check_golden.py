#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs millrace-batch on the prompts of a golden.json and compares logits and KV with it.

    check_golden.py --batch build/release/bin/millrace-batch --model DIR [--golden FILE]
                    [--dtype float32|bfloat16|float16] [--quantization fp8] [--close-logits] [--grids 1x1 2x1] [--head-plan dense]
                    [--device cpu|cuda]

float32: every top-10 logit within 0.02 (--logit-tolerance) and every K and V sample within 1e-3. bfloat16: the same first token and the
golden top-5 logits within 0.5; float16 has three bits more, so within 0.0625. If the golden file has them, log probabilities of probes are compared
like logits, and in float32, or with --all-tokens, all generated tokens. --close-logits is for models of random weights, whose logits 8-bit floats
reorder: the first token may be any whose golden logit is within twice the tolerance of the largest, and a token that the result does not list counts
as having at most the smallest logit that it lists. Grids are TPxCP. Standard library only. Exit status 0 when all hold, 77 when --device cuda finds
no GPU.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

KV_TOLERANCE = {"float32": 1e-3}
LOGIT_TOLERANCE = {"float32": 0.02, "bfloat16": 0.5, "float16": 0.0625}
SKIPPED = 77
LOGITS_COMPARED = {"float32": 10, "bfloat16": 5, "float16": 5}


def mpirun(ranks):
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), "--mca", "pml", "ob1",
               "--mca", "btl", "self,vader,tcp"]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    return command


class KvFiles:
    """The tensors that --kv save wrote for one prompt, addressed by (layer, kv head, token)."""

    def __init__(self, directory):
        with open(os.path.join(directory, "manifest.json")) as file:
            self.manifest = json.load(file)
        self.files = []
        for entry in self.manifest["files"]:
            with open(os.path.join(directory, entry["file"]), "rb") as file:
                data = file.read()
            size = struct.unpack("<Q", data[:8])[0]
            self.files.append((entry, json.loads(data[8:8 + size]), data[8 + size:]))

    def values(self, kind, layer, kv_head, token, dim, count):
        for entry, header, data in self.files:
            if not entry["first_kv_head"] <= kv_head < entry["first_kv_head"] + entry["num_kv_heads"]:
                continue
            row = 0
            for begin, end in entry["token_ranges"]:
                if begin <= token < end:
                    tensor = header[f"layers.{layer}.{kind}"]
                    _, rows, head_dim = tensor["shape"]
                    local_head = kv_head - entry["first_kv_head"]
                    element = (local_head * rows + row + token - begin) * head_dim + dim
                    at = tensor["data_offsets"][0]
                    if tensor["dtype"] == "F32":
                        return struct.unpack_from(f"<{count}f", data, at + 4 * element)
                    if tensor["dtype"] == "F16":
                        return struct.unpack_from(f"<{count}e", data, at + 2 * element)
                    bits = struct.unpack_from(f"<{count}H", data, at + 2 * element)
                    return [struct.unpack("<f", struct.pack("<I", b << 16))[0] for b in bits]
                row += end - begin
        raise ValueError(f"no file holds layer {layer}, kv head {kv_head}, token {token}")


def prompt_line(number, case):
    line = {"id": f"golden-{number}", "prompt_token_ids": case["prompt_token_ids"]}
    if "generated_token_ids" in case:
        line["max_tokens"] = len(case["generated_token_ids"])
    for field in ("probe_positions", "probe_target_ids"):
        if field in case:
            line[field] = case[field]
    return json.dumps(line) + "\n"


def run(args, tp, cp, golden, directory):
    prompts = os.path.join(directory, "prompts.jsonl")
    with open(prompts, "w") as file:
        file.writelines(prompt_line(i, case) for i, case in enumerate(golden))
    subprocess.run(
        mpirun(tp * cp) + [args.batch, "--model", args.model, "--input", prompts, "--output", directory,
                           "--tp", str(tp), "--cp", str(cp), "--head-plan", args.head_plan,
                           "--dtype", args.dtype, "--quantization", args.quantization, "--device", args.device, "--kv", "save", "--crossover-tokens", "0"],
        check=True)
    with open(os.path.join(directory, "results.jsonl")) as file:
        return [json.loads(line) for line in file]


def largest_kv_error(case, kv):
    worst = 0.0
    for sample in case["kv_samples"]:
        for kind in ("k", "v"):
            values = kv.values(kind, sample["layer"], sample["kv_head"], sample["token"], sample["dim"],
                               len(sample[kind]))
            worst = max(worst, max(abs(a - b) for a, b in zip(values, sample[kind])))
    return worst


def compare(args, grid, case, result, kv):
    tolerance = args.logit_tolerance or LOGIT_TOLERANCE[args.dtype]
    expected = case["last_logits_top10"][:LOGITS_COMPARED[args.dtype]]
    got = dict((token, logit) for token, logit in result["top_logits"])
    unlisted = min(got.values()) if args.close_logits else float("-inf")
    worst_logit = max(abs(got.get(token, unlisted) - logit) for token, logit in expected)
    if "probe_logprobs" in case:
        assert len(result["probe_logprobs"]) == len(case["probe_logprobs"])
        worst_logit = max(worst_logit, max(abs(a - b) for a, b in zip(result["probe_logprobs"], case["probe_logprobs"])))
    exact = args.dtype == "float32" and args.quantization == "none"
    count = len(case.get("generated_token_ids", [0])) if exact or args.all_tokens else 1
    tokens = case.get("generated_token_ids", [expected[0][0]])[:count]
    same_tokens = result["generated_token_ids"][:count] == tokens
    close = [token for token, logit in case["last_logits_top10"] if logit >= expected[0][1] - 2 * tolerance]
    good_tokens = same_tokens or (args.close_logits and result["generated_token_ids"][0] in close)
    worst_kv = largest_kv_error(case, kv)
    good = good_tokens and worst_logit <= tolerance
    if exact:
        good = good and worst_kv <= KV_TOLERANCE[args.dtype]
    print(f"{args.device} {args.dtype} {grid}, {result['num_tokens']} tokens: generated {'the same' if same_tokens else 'OTHERS'}, "
          f"worst logit {worst_logit:.5f}, worst KV {worst_kv:.6f}: {'ok' if good else 'FAILED'}")
    return good


def check(args, golden, grid):
    tp, cp = (int(ranks) for ranks in grid.split("x"))
    with tempfile.TemporaryDirectory() as directory:
        results = run(args, tp, cp, golden, directory)
        good = [compare(args, grid, case, result, KvFiles(os.path.join(directory, "kv", result["id"])))
                for case, result in zip(golden, results)]
    return all(good) and len(good) == len(golden)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--golden")
    parser.add_argument("--dtype", choices=sorted(LOGIT_TOLERANCE), default="float32")
    parser.add_argument("--quantization", choices=["none", "fp8"], default="none")
    parser.add_argument("--logit-tolerance", type=float)
    parser.add_argument("--all-tokens", action="store_true")
    parser.add_argument("--close-logits", action="store_true")
    parser.add_argument("--grids", nargs="+", default=["1x1"])
    parser.add_argument("--head-plan", default="dense")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not os.path.exists("/dev/nvidiactl"):
        print("skipped: no GPU")
        return SKIPPED
    with open(args.golden or os.path.join(args.model, "golden.json")) as file:
        golden = json.load(file)
    good = [check(args, golden, grid) for grid in args.grids]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
