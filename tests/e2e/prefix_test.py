#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts whose prefix a group has cached: decode nodes answer as if every prompt had been computed whole."""
import json
import os
import re
import subprocess
import tempfile
import unittest

from service import BIN_DIR, PATIENCE_S, InBackground, Service, ServiceTestCase, StreamingDecode, make_prompt, tokens_for, wait_until

# The records that the queries ask for lie in the first third.
PROMPTS = [make_prompt(tokens_for(3072), seed=seed) for seed in (2, 3)]


class PrefixTest(ServiceTestCase):
    """One service for all tests, with two context-parallel and two tensor-parallel ranks."""

    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group(tp=2, cp=2)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def decoded(self, response):
        code, decoded = self.service.decode(response, "--tp", "2")
        self.assertEqual(code, 0, decoded)
        self.assertEqual(decoded["corrupt_pages"], 0)
        return decoded

    def metric(self, name):
        _, _, text = self.service.get("/metrics")
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))

    def test_a_prompt_behind_its_first_half_is_the_whole_one(self):
        for plan in "dense", "adaptive":
            for prompt in PROMPTS:
                with self.subTest(plan=plan):
                    salt = f"{plan}-{prompt['prompt_token_ids'][5]}"
                    fields = {"head_plan": plan, "cache_salt": salt}
                    status, _, whole = self.service.prefill(prompt, **fields)
                    self.assertEqual((status, whole["cached_tokens"]), (200, 0), whole)
                    tokens = prompt["prompt_token_ids"]
                    half = {"prompt_token_ids": tokens[:len(tokens) // 2]}
                    status, _, first = self.service.prefill(half, cache="write", **fields)
                    self.assertEqual((status, first["cached_tokens"]), (200, 0), first)
                    status, _, behind = self.service.prefill(prompt, cache="both", **fields)
                    self.assertEqual(status, 200, behind)
                    self.assertGreaterEqual(behind["cached_tokens"], len(tokens) // 2 - 192)
                    status, _, again = self.service.prefill(prompt, cache="both", **fields)
                    self.assertEqual(again["cached_tokens"], (len(tokens) - 64) // 64 * 64)
                    expected = self.decoded(whole)
                    for response in behind, again:
                        decoded = self.decoded(response)
                        self.assertEqual(decoded["generated_token_ids"], expected["generated_token_ids"])
                    if plan == "dense":
                        self.assertEqual(expected["generated_token_ids"], prompt["answer_token_ids"])

    def test_a_streamed_hand_over_has_the_prefix_from_the_first_layer_on(self):
        prompt = PROMPTS[0]
        self.service.prefill(prompt, cache="write", cache_salt="streamed")
        _, _, whole = self.service.prefill(prompt)
        with StreamingDecode("--tp", "2") as node:
            for name, data in self.service.prefill_events(prompt, handover="streaming", cache="read", cache_salt="streamed"):
                node.pass_on(name, data)
            code, streamed = node.result()
        self.assertEqual(code, 0, streamed)
        self.assertGreater(data["cached_tokens"], 0)
        self.assertEqual(streamed["generated_token_ids"], self.decoded(whole)["generated_token_ids"])
        # Pulled layer by layer, the bytes are the same as at the end.
        self.assertEqual(streamed["cache_checksums"], self.decoded(data)["cache_checksums"])

    def test_another_salt_does_not_hit_and_metrics_tell(self):
        prompt = PROMPTS[1]
        before = self.metric("millrace_prefix_cache_hit_tokens_total")
        self.assertEqual(self.service.prefill(prompt, cache="both", cache_salt="mine")[2]["cached_tokens"], 0)
        self.assertEqual(self.service.prefill(prompt, cache="both", cache_salt="yours")[2]["cached_tokens"], 0)
        hit = self.service.prefill(prompt, cache="both", cache_salt="mine")[2]["cached_tokens"]
        self.assertGreater(hit, 0)
        wait_until("the metric", lambda: self.metric("millrace_prefix_cache_hit_tokens_total") >= before + hit, 20)
        self.assertGreater(self.metric("millrace_prefix_cache_bytes"), 0)
        self.assertEqual(self.metric("millrace_prefix_cache_uneconomic_tokens_total"), 0)  # nothing is on disk

    def test_an_empty_salt_is_refused_and_the_client_does_not_leave_it_out(self):
        status, _, answer = self.service.prefill(PROMPTS[0], cache="both", cache_salt="")
        self.assertEqual((status, answer["error"]["param"]), (400, "cache_salt"))
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(PROMPTS[0], file)
            file.flush()
            done = subprocess.run([os.path.join(BIN_DIR, "millrace-client"), "--server", f"127.0.0.1:{self.service.http_port}", "prefill", "--model",
                                   "fixture", "--prompt", file.name, "--cache-salt", ""], capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("'cache_salt' is empty", done.stderr)


class RoutingTest(ServiceTestCase):
    """Two identical groups of one rank each. Free room decides which of them gets a prompt of which neither has anything cached."""

    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        for name in "left", "right":
            # One dtype for both: otherwise each group chooses by what it measures. No preemption: otherwise the last turn would run
            # between two layers of the long prompt.
            cls.service.start_group("--group-name", name, "--preempt-tokens", 0, "--dtype", "float32", tp=1)
        wait_until("both groups", cls.num_groups_is_two, 60)

    @classmethod
    def num_groups_is_two(cls):
        return "millrace_connected_groups 2" in cls.service.get("/metrics")[2]

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def run_turn(self, tokens, **fields):
        status, _, response = self.service.prefill({"prompt_token_ids": tokens}, cache="both", **fields)
        self.assertEqual(status, 200, response)
        return response

    def test_a_conversation_stays_with_its_group_unless_that_is_busy_for_long(self):
        first, other = (prompt["prompt_token_ids"][:2560] for prompt in PROMPTS)
        turn = first + other[:600]
        home = self.run_turn(first)
        self.assertEqual(home["cached_tokens"], 0)
        # That group has less room now, so a prompt that it has nothing of goes to the other group.
        elsewhere = self.run_turn(other[:512])
        self.assertNotEqual(elsewhere["group"], home["group"])
        second = self.run_turn(turn)
        self.assertEqual(second["group"], home["group"])
        self.assertGreater(second["cached_tokens"], len(first) - 192)
        # This prompt begins the same, and takes many times as long as the whole next turn.
        long = {"request_id": "long", "deadline_ms": 600000}
        background = InBackground(lambda: self.service.prefill(
            {"prompt_token_ids": turn + other * tokens_for(6)}, cache="both", **long))
        self.service.wait_for_layers("long")
        self.assertEqual(self.service.get("/v1/prefill/long")[2]["group"], home["group"])
        third = self.run_turn(turn + other[600:1200])
        self.assertEqual(third["group"], elsewhere["group"])
        self.assertGreaterEqual(self.service.layers_done("long"), 1)
        self.service.request("DELETE", "/v1/prefill/long")
        background.wait(60)


if __name__ == "__main__":
    unittest.main()
