#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cache prefilled by Millrace in a transformers model gives the numbers and the answer of the model's own prefill."""
import os
import signal
import sys
import unittest

import torch
from millrace_kv import Client, Coordinator
from millrace_kv.transformers import prefill
from transformers import AutoModelForCausalLM

sys.path.insert(0, os.path.join(os.environ["MILLRACE_SOURCE_DIR"], "tests/e2e"))
from service import MODEL_DIR, Service, ServiceTestCase, make_prompt  # noqa: E402

# transformers rounds the angles of the rotary embedding to float32: for angles up to 999 radians that is 3e-5 of a radian, on keys of up to 20,
# and the error propagates through the layers. A key of another position is off by more than 1.
TOLERANCE = 5e-3


class TransformersTest(ServiceTestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group("--dtype", "float32", cp=2)
        cls.model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
        cls.client = Client()
        cls.addClassCleanup(cls.client.close)
        cls.coordinator = Coordinator(f"127.0.0.1:{cls.service.http_port}")

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def prefilled(self, tokens):
        return prefill(self.coordinator, "fixture", tokens, client=self.client)

    def test_the_cache_is_that_of_the_models_own_prefill(self):
        tokens = make_prompt(999, seed=1)["prompt_token_ids"]
        cache, _ = self.prefilled(tokens)
        with torch.no_grad():
            expected = self.model(torch.tensor([tokens[:-1]]), use_cache=True).past_key_values
        self.assertEqual(len(cache.layers), len(expected.layers))
        for layer, (got, own) in enumerate(zip(cache.layers, expected.layers)):
            for name in "keys", "values":
                torch.testing.assert_close(getattr(got, name), getattr(own, name), rtol=0, atol=TOLERANCE,
                                               msg=lambda text: f"{name} of layer {layer}: {text}")

    def test_generation_goes_on_from_it(self):
        for num_tokens in 1024, 2001:
            with self.subTest(num_tokens=num_tokens):
                prompt = make_prompt(num_tokens, seed=num_tokens)
                cache, result = self.prefilled(prompt["prompt_token_ids"])
                answer = self.model.generate(torch.tensor([prompt["prompt_token_ids"]]), past_key_values=cache, max_new_tokens=4, do_sample=False)
                self.assertEqual(answer[0, -4:].tolist(), prompt["answer_token_ids"])
                self.assertEqual(result.first_token_id, prompt["answer_token_ids"][0])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
