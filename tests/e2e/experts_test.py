#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts as a service: one group prefills, decode nodes pull its cache, and both produce Transformers' tokens."""
import json
import os
import signal
import sys
import unittest

from service import SOURCE_DIR, Service, ServiceTestCase

NAME = "qwen3moe"
MODEL = os.path.join(SOURCE_DIR, "tests/models/architectures", NAME)
with open(os.path.join(MODEL, "golden.json")) as golden:
    PROMPT = json.load(golden)[-1]
EXPECTED = PROMPT["generated_token_ids"]


class ExpertsTest(ServiceTestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group("--model", MODEL, "--dtype", "float32", tp=2, cp=2)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def prefill(self, **fields):
        status, _, response = self.service.prefill(PROMPT, model=NAME, **fields)
        self.assertEqual(status, 200, response)
        return response

    def test_decode_nodes_go_on_as_transformers_does(self):
        response = self.prefill()
        for options in ("--tp", "1"), ("--tp", "2"), ("--attention", "progressive", "--mass", "1", "--mass-by", "bound"):
            code, report = self.service.decode(response, *options, model=MODEL, max_tokens=len(EXPECTED))
            self.assertEqual(code, 0, report)
            self.assertEqual(report["generated_token_ids"], EXPECTED, options)

    def test_a_cached_prefix_changes_nothing(self):
        first = self.prefill(cache="both")
        again = self.prefill(cache="both")
        self.assertGreater(again["cached_tokens"], 0)
        self.assertEqual(again["first_token_id"], first["first_token_id"])
        code, report = self.service.decode(again, model=MODEL, max_tokens=len(EXPECTED))
        self.assertEqual(code, 0, report)
        self.assertEqual(report["generated_token_ids"], EXPECTED)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
