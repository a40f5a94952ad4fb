#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""millrace-decode on a live group: progressive attention, which generates dense attention's tokens from part of the pages, and predicted neurons."""
import json
import os
import signal
import struct
import sys
import unittest

from service import MODEL_DIR, Service, ServiceTestCase, StreamingDecode, make_prompt, tokens_for

PROMPT = make_prompt(tokens_for(4096), seed=2)
ANSWER_TOKENS = 60
NUM_LAYERS = 5
# The least share of equal choices, at the default mass.
LEAST_EQUAL = 0.99


def write_blank_predictor(path, model=MODEL_DIR):
    """Writes a neuron predictor (decode/mlp/neuron_predictor.h) for the model that rates all neurons alike, so the first ones are chosen."""
    with open(os.path.join(model, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(model, "model.safetensors"), "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        table = json.loads(file.read(length))["model.embed_tokens.weight"]
        file.seek(8 + length + table["data_offsets"][0])
        first_row = file.read(2 * config["hidden_size"])
    assert table["dtype"] == "BF16", table
    widened = b"".join(b"\0\0" + first_row[i:i + 2] for i in range(0, len(first_row), 2))
    hidden, neurons = config["hidden_size"], config["intermediate_size"]
    tensors = {"embedding_rows": ("F32", [1, hidden], widened)}
    for layer in range(1, config["num_hidden_layers"]):
        tensors[f"layers.{layer}.reduce"] = ("BF16", [1, hidden], bytes(2 * hidden))
        tensors[f"layers.{layer}.expand"] = ("BF16", [1, neurons], bytes(2 * neurons))
        tensors[f"layers.{layer}.bias"] = ("F32", [neurons], bytes(4 * neurons))
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class ProgressiveTest(ServiceTestCase):
    """Prefill with CP 2; one service and one cache for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group(tp=1, cp=2)
        status, _, cls.response = cls.service.prefill(PROMPT, lease_ms=1800000)
        assert status == 200, cls.response
        code, cls.dense = cls.service.decode(cls.response, "--ignore-eos", max_tokens=ANSWER_TOKENS)
        assert code == 0, cls.dense
        cls.follow = os.path.join(cls.service.directory.name, "follow.json")
        with open(cls.follow, "w") as file:
            json.dump(cls.dense["generated_token_ids"], file)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def decode(self, *options, tokens=ANSWER_TOKENS):
        code, report = self.service.decode(self.response, "--ignore-eos", "--attention", "progressive", *options, max_tokens=tokens)
        self.assertEqual(code, 0, report)
        return report

    def share_equal(self, report):
        """The share of equal choices after the prefill's token."""
        pairs = list(zip(report["generated_token_ids"], self.dense["generated_token_ids"], strict=True))[1:]
        return sum(a == b for a, b in pairs) / len(pairs)

    def test_it_chooses_what_dense_attention_chooses_from_part_of_the_pages(self):
        report = self.decode("--follow", self.follow)
        self.assertGreaterEqual(self.share_equal(report), LEAST_EQUAL)
        figures = report["progressive"]
        self.assertLess(figures["density"], 0.9)
        self.assertEqual(len(figures["layers"]), NUM_LAYERS)
        self.assertGreater(report["first_token_s"], 0)

    def test_it_answers_by_itself_with_a_quarter_of_the_pages_in_memory(self):
        for tp in "1", "2":
            memory = self.dense["pulled_bytes"] // 4 // int(tp)
            report = self.decode("--pages-memory", str(memory), "--tp", tp, tokens=4)
            self.assertEqual(report["generated_token_ids"], PROMPT["answer_token_ids"])
            self.assertGreater(report["progressive"]["evictions"], 0)

    def test_prediction_and_memory_change_no_token(self):
        expected = self.decode("--follow", self.follow, tokens=12)["generated_token_ids"]
        memory = str(self.dense["pulled_bytes"] // 4)
        for options in ("--pages-memory", memory), ("--pages-memory", memory, "--no-prediction"), ("--start", "hot"), ("--start", "whole"):
            self.assertEqual(self.decode("--follow", self.follow, *options, tokens=12)["generated_token_ids"], expected, options)

    def test_predicted_neurons_are_as_many_as_asked_for(self):
        path = os.path.join(self.service.directory.name, "neurons.safetensors")
        write_blank_predictor(path)
        self.assertNotIn("mlp", self.dense)
        for share, neurons in ("1", 768), ("0.25", 192):
            code, report = self.service.decode(self.response, "--ignore-eos", "--neuron-predictor", path, "--mlp-share", share, max_tokens=ANSWER_TOKENS)
            self.assertEqual(code, 0, report)
            self.assertEqual((report["mlp"]["share"], report["mlp"]["neurons"]), (float(share), neurons))
            if share == "1":
                self.assertEqual(report["generated_token_ids"][:4], self.dense["generated_token_ids"][:4])
        for options, status, why in ((("--neuron-predictor", os.path.join(MODEL_DIR, "model.safetensors")), 1, "model.safetensors: no tensor"),
                                     (("--mlp-share", "0.5"), 2, "--neuron-predictor")):
            code, said = self.service.decode(self.response, *options)
            self.assertEqual(code, status, said)
            self.assertIn(why, said)

    def test_the_whole_mass_by_its_bound_reads_every_page(self):
        report = self.decode("--mass", "1", "--mass-by", "bound", tokens=4)
        self.assertEqual(report["generated_token_ids"], PROMPT["answer_token_ids"])
        self.assertEqual(report["progressive"]["density"], 1)

    def test_streaming_begins_before_the_whole_cache_is_there(self):
        with StreamingDecode("--attention", "progressive") as node:
            for name, data in self.service.prefill_events(PROMPT, handover="streaming"):
                node.pass_on(name, data)
            code, report = node.result()
        self.assertEqual(code, 0, report)
        self.assertEqual(report["generated_token_ids"], PROMPT["answer_token_ids"])

    def test_what_cannot_be_is_refused(self):
        code, message = self.service.decode(self.response, "--attention", "progressive", "--pages-memory", "64KiB")
        self.assertEqual(code, 1)
        self.assertIn("are the least", message)
        code, message = self.service.decode(self.response, "--follow", os.devnull)
        self.assertEqual(code, 1)
        self.assertIn("not a JSON list of tokens", message)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
