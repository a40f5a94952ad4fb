#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares log probabilities of millrace-batch on a real model with a NumPy forward pass that shares no code with it (make_golden.Llama,
gemma_reference.Gemma).

    check_logprobs.py --batch build/release/bin/millrace-batch [--model smollm2-135m] [--grids 1x1 3x1 1x2] [--tokens 500]

A grid is TPxCP. Every 7th position of a text is a probe for the token that comes next there. Exit status 0 when all comparisons
hold, 77 without a model (real_model.py).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.dirname(HERE)
sys.path[:0] = [HERE, MODELS]

import real_model  # noqa: E402
from check_golden import mpirun  # noqa: E402

# Both compute in float32, with sums in different orders. A rounding is 2^-24 of a value, which is 2e-6 for this model's logits of up to 40. 30
# layers of about ten sums each add up some 300 roundings: 7e-4 if all went one way. A rope_theta that is 1 % off moves the worst one by 0.012.
TOLERANCE = 1e-3
PROBE_STEP = 7
TEXT = "/usr/share/common-licenses/GPL-3"  # every Debian and Ubuntu has it
# Both read the output of convert_gguf.py, so that output is judged by what the model knows, in nats per token of the text. SmolLM2: 3.3 as it is,
# 5.6 with Q and K in GGUF's order, 10.8 for a model that knows nothing. Gemma: 2.7, 4.5 with one rotary base for all layers
MOST_NLL = {real_model.SMOLLM: 4.3, real_model.GEMMA: 3.5}


def make_prompt(model, num_tokens):
    from tokenizers import Tokenizer
    with open(TEXT, encoding="utf-8") as file:
        ids = Tokenizer.from_file(os.path.join(model, "tokenizer.json")).encode(file.read()).ids[:num_tokens]
    assert len(ids) == num_tokens
    probes = list(range(0, num_tokens - 1, PROBE_STEP))
    return {"id": "text", "prompt_token_ids": ids, "probe_positions": probes, "probe_target_ids": [ids[i + 1] for i in probes]}


def reference(name, model, prompt):
    """Log probabilities, [probes, vocabulary] in double precision."""
    import numpy as np
    ids, rows = prompt["prompt_token_ids"], prompt["probe_positions"]
    if name == real_model.GEMMA:
        from gemma_reference import Gemma
        logits = Gemma(model).logits(ids, rows)
    else:
        from make_golden import Llama
        logits, _ = Llama(model).forward(ids, rows)
    logits = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


class Comparison:
    """The comparison of one grid's result with the reference."""

    def __init__(self, prompt, expected, result):
        rows = range(len(expected))
        got, tokens = result["probe_logprobs"], result["probe_token_ids"]
        assert len(got) == len(tokens) == len(expected)
        self.worst = max(abs(got[i] - expected[i, prompt["probe_target_ids"][i]]) for i in rows)
        # If two tokens are equally likely within the tolerance, either may be the first.
        self.other_tokens = sum(expected[i, tokens[i]] < expected[i].max() - 2 * TOLERANCE for i in rows)
        self.good = self.worst <= TOLERANCE and self.other_tokens == 0


def run(args, model, grid, prompt, directory):
    tp, cp = (int(side) for side in grid.split("x"))
    path, output = os.path.join(directory, "prompt.jsonl"), os.path.join(directory, grid)
    with open(path, "w") as file:
        file.write(json.dumps(prompt) + "\n")
    subprocess.run(mpirun(tp * cp) + [args.batch, "--model", model, "--input", path, "--output", output, "--tp", str(tp), "--cp", str(cp),
                                      "--head-plan", "dense", "--dtype", "float32", "--device", "cpu"], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(output, "results.jsonl")) as file:
        return json.loads(file.readline())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", required=True)
    parser.add_argument("--model", choices=real_model.GGUF_PARTS, default=real_model.SMOLLM)
    parser.add_argument("--grids", nargs="+", default=["1x1", "3x1", "1x2"])
    parser.add_argument("--tokens", type=int, default=500)
    args = parser.parse_args()
    model = real_model.prepare_or_exit(dtype="float32", name=args.model)
    prompt = make_prompt(model, args.tokens)
    expected = reference(args.model, model, prompt)
    nll = -sum(expected[i, token] for i, token in enumerate(prompt["probe_target_ids"])) / len(expected)
    good = nll <= MOST_NLL[args.model]
    print(f"negative log likelihood of the text {nll:.2f}, at most {MOST_NLL[args.model]}: {'ok' if good else 'FAILED'}")
    with tempfile.TemporaryDirectory() as directory:
        for grid in args.grids:
            compared = Comparison(prompt, expected, run(args, model, grid, prompt, directory))
            good &= compared.good
            print(f"{grid}: {len(expected)} probes in {args.tokens} tokens, worst log probability {compared.worst:.2e} off, "
                  f"{compared.other_tokens} other tokens: {'ok' if compared.good else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
