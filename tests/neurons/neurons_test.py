#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/calibrate/neurons on a small random Llama: its records against the model's own modules, the map against a regression by rows, the file.

Run by tests/engines/run, which has torch and transformers. Exit status 77 without them; with MILLRACE_ENGINES=required that is an error.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools", "calibrate", "neurons")
sys.path[:0] = [os.path.dirname(TOOL)]

try:
    import torch
    import transformers
    from safetensors import safe_open
    from transformers.utils.logging import disable_progress_bar
except ImportError as why:
    print(f"skipped: {why}")
    sys.exit(1 if os.environ.get("MILLRACE_ENGINES") == "required" else 77)

from neuron_sums import FIRST_ROW, LayerSums, Model  # noqa: E402
from token_prompts import Prompt  # noqa: E402

disable_progress_bar()
LAYERS, HIDDEN, NEURONS, VOCABULARY, RANK = 3, 64, 160, 128, 16


def save_model(directory):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=NEURONS, num_hidden_layers=LAYERS,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.2)
    transformers.LlamaForCausalLM(config).save_pretrained(directory)


def make_prompt(num_tokens, seed):
    token_ids = torch.randint(VOCABULARY, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Prompt(str(seed), token_ids, [])


class RecordTest(unittest.TestCase):
    def test_a_layers_contributions_come_with_the_input_of_the_layer_before(self):
        with tempfile.TemporaryDirectory() as directory:
            save_model(directory)
            prompt, seen = make_prompt(100, seed=1), {}
            Model(directory).visit(prompt, lambda layer, x, contributions: seen.update({layer: (x, contributions)}))
            model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
            residuals = {}
            for number, layer in enumerate(model.model.layers):
                layer.post_attention_layernorm.register_forward_hook(lambda _, given, normed, number=number: residuals.update({number: normed}))
            with torch.no_grad():
                hidden = model(torch.tensor([prompt.token_ids]), output_hidden_states=True).hidden_states
                self.assertEqual(sorted(seen), [1, 2])
                for number, (x, contributions) in seen.items():
                    before = hidden[number - 1][0, FIRST_ROW:]
                    expected_x = before / (before.square().mean(dim=-1, keepdim=True) + model.config.rms_norm_eps).sqrt()
                    torch.testing.assert_close(x, expected_x)
                    mlp, normed = model.model.layers[number].mlp, residuals[number][0, FIRST_ROW:]
                    gate, up = normed @ mlp.gate_proj.weight.T, normed @ mlp.up_proj.weight.T
                    each = (gate * gate.sigmoid() * up)[:, :, None] * mlp.down_proj.weight.T
                    torch.testing.assert_close(contributions, each.norm(dim=-1), rtol=1e-4, atol=1e-6)


class FitTest(unittest.TestCase):
    def test_the_map_is_the_best_of_its_rank(self):
        generator = torch.Generator().manual_seed(2)
        x = torch.randn(400, 12, generator=generator) @ torch.randn(12, 12, generator=generator) + 3
        y = x @ torch.randn(12, 20, generator=generator) + torch.randn(400, 20, generator=generator) - 5
        sums = LayerSums(12, 20)
        for first in range(0, 400, 100):
            sums.add(x[first:first + 100], y[first:first + 100])
        reduce, expand, bias = (part.double() for part in sums.fit(4))
        self.assertEqual([list(part.shape) for part in (reduce, expand, bias)], [[4, 12], [4, 20], [20]])
        # By rows: ridge regression is least squares with additional rows of sqrt(ridge). Its fitted values are cut to their leading singular vectors.
        centred_x, centred_y = (x - x.mean(dim=0)).double(), (y - y.mean(dim=0)).double()
        more = (1e-3 * 400) ** 0.5 * torch.eye(12, dtype=torch.float64)
        rows_x, rows_y = torch.cat([centred_x, more]), torch.cat([centred_y, torch.zeros(12, 20, dtype=torch.float64)])
        solution = torch.linalg.lstsq(rows_x, rows_y).solution
        _, _, directions = torch.linalg.svd(rows_x @ solution, full_matrices=False)
        expected = centred_x @ solution @ directions[:4].T @ directions[:4] + y.mean(dim=0)
        scores = (x.double() @ reduce.T) @ expand + bias
        # Both matrices are bfloat16, which rounds by 2^-9 of each term; about a dozen terms partly cancel.
        self.assertLess((scores - expected).norm() / (expected - expected.mean(dim=0)).norm(), 0.02)


class ToolTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = directory.name
        cls.model = os.path.join(cls.directory, "model")
        save_model(cls.model)
        with open(cls.path("prompts.jsonl"), "w") as file:
            for seed in range(10):
                file.write(json.dumps({"id": f"p{seed}", "prompt_token_ids": make_prompt(512, seed).token_ids}) + "\n")

    @classmethod
    def path(cls, name):
        return os.path.join(cls.directory, name)

    def run_tool(self, output, *options):
        done = subprocess.run([sys.executable, TOOL, "--model", self.model, "--input", self.path("prompts.jsonl"), "--output", self.path(output),
                               "--rank", str(RANK), "--threads", "2", *options], capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, done.stderr

    def predictor(self, output, *options):
        status, _, errors = self.run_tool(output, *options)
        self.assertEqual(status, 0, errors)
        with open(self.path(output), "rb") as file:
            return file.read()

    def test_two_runs_give_the_same_file(self):
        self.assertEqual(self.predictor("first"), self.predictor("second"))

    def test_the_file_has_what_millrace_reads(self):
        self.predictor("file.safetensors", "--held-out", "2")
        with safe_open(self.path("file.safetensors"), framework="pt") as file:
            shapes = {name: (str(file.get_tensor(name).dtype), list(file.get_tensor(name).shape)) for name in file.keys()}
            expected = {"embedding_rows": ("torch.float32", [16, HIDDEN])}
            for layer in range(1, LAYERS):
                expected[f"layers.{layer}.reduce"] = ("torch.bfloat16", [RANK, HIDDEN])
                expected[f"layers.{layer}.expand"] = ("torch.bfloat16", [RANK, NEURONS])
                expected[f"layers.{layer}.bias"] = ("torch.float32", [NEURONS])
            self.assertEqual(shapes, expected)
            facts = file.metadata()
            self.assertEqual((facts["model"], facts["rank"], facts["rows"]), ("model", str(RANK), str(8 * (512 - FIRST_ROW))))
            with safe_open(os.path.join(self.model, "model.safetensors"), framework="pt") as weights:
                table = weights.get_tensor("model.embed_tokens.weight").float()
            self.assertTrue(torch.equal(file.get_tensor("embedding_rows"), table[[VOCABULARY * i // 16 for i in range(16)]]))

    def test_recall_on_prompts_that_were_not_fitted_is_better_than_by_chance(self):
        self.predictor("recall.safetensors", "--held-out", "2")
        with safe_open(self.path("recall.safetensors"), framework="pt") as file:
            layers = {layer: tuple(file.get_tensor(f"layers.{layer}.{part}") for part in ("reduce", "expand", "bias")) for layer in range(1, LAYERS)}
            told = float(file.metadata()["recall at 0.25"])
        fresh = [make_prompt(512, seed) for seed in (100, 101)]
        recall = Model(self.model).recall(fresh, layers, (0.25,))[0.25]
        always_the_same = {layer: (reduce * 0, expand, bias) for layer, (reduce, expand, bias) in layers.items()}
        frequent = Model(self.model).recall(fresh, always_the_same, (0.25,))[0.25]
        # Chance gives a quarter. This model's tokens are random, so only the last token carries information.
        self.assertGreater(min(recall), 0.4)
        self.assertGreater(sum(recall), sum(frequent) + 0.1)
        self.assertAlmostEqual(told, sum(recall) / len(recall), delta=0.03)

    def test_what_cannot_be_done_is_said_and_leaves_the_output_alone(self):
        with open(self.path("kept"), "w") as file:
            file.write("kept")
        with open(self.path("short.jsonl"), "w") as file:
            file.write(json.dumps({"id": "a", "prompt_token_ids": [1] * 64}) + "\n" + json.dumps({"prompt_token_ids": [1] * 100}) + "\n")
        with open(self.path("few.jsonl"), "w") as file:
            file.write((json.dumps({"prompt_token_ids": [1] * 100}) + "\n") * 2)
        for options, why in ((("--rank", "65"), "--rank 65: the model has 64 dimensions and 160 neurons a layer"),
                             (("--rank", "0"), "--rank: is 0, expected an integer of at least 1"),
                             (("--held-out", "10"), "--held-out 10: "),
                             (("--input", self.path("short.jsonl")), "prompt a has 64 tokens, more than 64 are needed"),
                             (("--input", self.path("few.jsonl")), "36 rows to fit, fewer than the model's 64 dimensions"),
                             (("--input", "/nowhere"), "/nowhere: No such file or directory"),
                             (("--output", "/nowhere/x"), "--output /nowhere/x: cannot be written"),
                             (("--model", "/nowhere"), "--model /nowhere: ")):
            with self.subTest(options=options):
                status, _, errors = self.run_tool("kept", *options)
                self.assertEqual(status, 2, errors)
                self.assertIn(why, errors)
                self.assertNotIn("Traceback", errors)
        with open(self.path("kept")) as file:
            self.assertEqual(file.read(), "kept")


if __name__ == "__main__":
    unittest.main(verbosity=2)
