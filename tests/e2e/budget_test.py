#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Partially kept caches (kv_budget) on live groups: what a decode node generates from the kept pages on any grid, and what is refused."""
import base64
import json
import os
import tempfile
import unittest

from command_line_test import run
from service import Service, ServiceTestCase, make_prompt, tokens_for

PROMPT = make_prompt(tokens_for(2048), seed=2)
ANSWER_TOKENS = 12
NUM_LAYERS, NUM_KV_HEADS, PAGE_BYTES = 5, 2, 2 * 64 * 128 * 4


def batch(budget, option="--kv-budget"):
    """The result line of millrace-batch on one rank, which generates the tokens itself."""
    with tempfile.TemporaryDirectory(prefix="millrace-e2e-") as directory:
        prompts = os.path.join(directory, "prompts.jsonl")
        with open(prompts, "w") as file:
            file.write(json.dumps({"id": "a", "prompt_token_ids": PROMPT["prompt_token_ids"], "max_tokens": ANSWER_TOKENS, "ignore_eos": True}) + "\n")
        status, said = run("millrace-batch", "--input", prompts, "--output", directory, "--head-plan", "dense", "--dtype", "float32", option, str(budget))
        assert status == 0, said
        with open(os.path.join(directory, "results.jsonl")) as file:
            return json.loads(file.read())


class BudgetTest(ServiceTestCase):
    def setUp(self):
        self.service = None

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def start(self, tp, cp):
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start_group("--dtype", "float32", tp=tp, cp=cp)

    def prefill(self, **fields):
        status, _, response = self.service.prefill(PROMPT, head_plan="dense", **fields)
        self.assertEqual(status, 200, response)
        return response

    def decoded(self, response, *options):
        code, report = self.service.decode(response, "--ignore-eos", *options, max_tokens=ANSWER_TOKENS)
        self.assertEqual(code, 0, report)
        return report

    def test_the_grids_keep_the_same_pages_and_decode_alike(self):
        expected = {budget: batch(budget) for budget in (1, 0.5, 0.1)}
        kept = {}
        for tp, cp in (1, 1), (2, 2):
            self.start(tp, cp)
            for budget, line in expected.items():
                with self.subTest(tp=tp, cp=cp, budget=budget):
                    response = self.prefill(kv_budget=budget)
                    if budget == 1:
                        self.assertNotIn("dropped", response)
                        self.assertNotIn("kept_pages", response["manifest"])
                    else:
                        bits = base64.b64decode(response["manifest"]["kept_pages"]["pages"])
                        self.assertEqual(kept.setdefault(budget, bits), bits)
                        self.assertEqual(response["dropped"]["pages"], line["dropped"]["pages"])
                        self.assertAlmostEqual(response["dropped"]["mass"], line["dropped"]["mass"], 4)
                        pages = NUM_LAYERS * NUM_KV_HEADS * -(-len(PROMPT["prompt_token_ids"]) // 64)
                        self.assertEqual(sum(map(int.bit_count, bits)), pages - response["dropped"]["pages"])
                        self.assertEqual(response["dropped"]["bytes"], response["dropped"]["pages"] * PAGE_BYTES)
                    for options in (), ("--tp", "2"), ("--order", "hot"), ("--attention", "progressive", "--mass", "1", "--mass-by", "bound"):
                        report = self.decoded(response, *options)
                        self.assertEqual(report["generated_token_ids"], line["generated_token_ids"])
        # Otherwise the test could not tell whether the mask is applied.
        self.assertNotEqual(expected[0.1]["generated_token_ids"], expected[1]["generated_token_ids"])

    def test_tokens_are_a_share_of_the_prompt(self):
        self.start(1, 1)
        num_tokens = len(PROMPT["prompt_token_ids"])
        kept = {}
        for name, fields in ("share", {"kv_budget": 0.25}), ("tokens", {"kv_budget_tokens": num_tokens // 4}):
            kept[name] = self.prefill(**fields)["manifest"]["kept_pages"]["pages"]
        self.assertEqual(kept["share"], kept["tokens"])
        for tokens in num_tokens, num_tokens + 1:
            self.assertNotIn("dropped", self.prefill(kv_budget_tokens=tokens))
        self.assertEqual(batch(num_tokens // 4, "--kv-budget-tokens")["dropped"], batch(0.25)["dropped"])

    def test_what_does_not_go_together_is_refused(self):
        self.start(1, 1)
        for fields, param in (({"kv_budget": 0}, "kv_budget"), ({"kv_budget": 1.5}, "kv_budget"), ({"kv_budget": "half"}, "kv_budget"),
                              ({"kv_budget": 0.5, "handover": "streaming", "stream": True}, "kv_budget"),
                              ({"kv_budget": 0.5, "cache": "both"}, "cache"), ({"kv_budget_tokens": 0}, "kv_budget_tokens"),
                              ({"kv_budget": 0.5, "kv_budget_tokens": 64}, "kv_budget_tokens")):
            status, _, body = self.service.prefill(PROMPT, **fields)
            self.assertEqual(status, 400, body)
            self.assertEqual(body["error"]["param"], param)
        status, said = run("millrace-batch", "--input", "/dev/null", "--output", self.service.directory.name, "--kv-budget", "0.5", "--kv", "save")
        self.assertEqual(status, 2)
        self.assertIn("files hold whole caches", said)
        for budget in "0", "nan", "1.5":
            status, said = run("millrace-batch", "--input", "/dev/null", "--output", self.service.directory.name, "--kv-budget", budget)
            self.assertEqual(status, 2, said)
            self.assertIn("--kv-budget", said)


if __name__ == "__main__":
    unittest.main()
