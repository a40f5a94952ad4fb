#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/calibrate on a small random Llama: influence against finite differences, the integer program against all choices, the plan in millrace-batch.

Run by tests/engines/run, which has torch, transformers and highspy. Exit status 77 without them; with MILLRACE_ENGINES=required that is an error.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools", "calibrate", "elastic")
sys.path[:0] = [os.path.dirname(TOOL)]

try:
    import highspy  # noqa: F401
    import numpy as np
    import torch
    import transformers
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.utils.logging import disable_progress_bar
except ImportError as why:
    print(f"skipped: {why}")
    sys.exit(1 if os.environ.get("MILLRACE_ENGINES") == "required" else 77)

from influence import Model, sums_by_distance, windowed_attention  # noqa: E402
from span_program import Program, pareto_choices, spread  # noqa: E402
from spans import Rule, density  # noqa: E402
from token_prompts import Prompt  # noqa: E402

BIN_DIR = os.environ.get("MILLRACE_BIN_DIR", os.path.join(ROOT, "build", "release", "bin"))
disable_progress_bar()
LAYERS, HEADS, KV_HEADS, VOCABULARY = 2, 4, 2, 128


def save_model(directory):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, hidden_size=128, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                                      num_key_value_heads=KV_HEADS, head_dim=64, max_position_embeddings=2048, initializer_range=0.1)
    transformers.LlamaForCausalLM(config).save_pretrained(directory)


def make_prompt(num_tokens, seed):
    token_ids = torch.randint(VOCABULARY, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Prompt(str(seed), token_ids, [(row, token_ids[row + 1]) for row in range(80, num_tokens - 1, 5)])


class ExplicitModel:
    """The same model in double precision with explicit attention. It keeps each layer's attention weights, and a test can change them."""

    def __init__(self, directory):
        self.added, self.kept = {}, {}
        ALL_ATTENTION_FUNCTIONS.register("explicit", self._attention)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="explicit")
        for module in self._model.modules():
            if type(module).__name__ == "LlamaRMSNorm":  # Transformers' version rounds to float32 whatever the model's dtype
                module.forward = lambda x, norm=module: norm.weight * x * (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()

    def _attention(self, module, query, key, value, mask, scaling, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        scores = query @ key.transpose(2, 3) * scaling
        rows = scores.shape[-1]
        weights = scores.masked_fill(torch.ones(rows, rows, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        for layer, head, row, change in self.added.values():
            if layer == module.layer_idx:
                weights = weights.clone()
                weights[0, head, row] += change
        if weights.requires_grad:
            weights.retain_grad()
        self.kept[module.layer_idx] = weights
        return (weights @ value).transpose(1, 2).contiguous(), None

    def loss(self, prompt):
        logits = self._model(torch.tensor([prompt.token_ids])).logits[0]
        rows, tokens = (torch.tensor(column) for column in zip(*prompt.targets))
        return torch.nn.functional.cross_entropy(logits[rows], tokens)


def without(weights, key):
    """The change of a row of attention when `key` is masked."""
    masked = weights.clone()
    masked[key] = 0
    return masked / masked.sum() - weights


class InfluenceTest(unittest.TestCase):
    TOKENS = 192  # rows 64 to 127 have keys that a window can leave out: those from 64 on

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        save_model(directory.name)
        cls.model, cls.explicit = Model(directory.name), ExplicitModel(directory.name)
        cls.prompt = make_prompt(cls.TOKENS, seed=1)
        cls.explicit.loss(cls.prompt).backward()
        cls.weights = [cls.explicit.kept[layer].detach()[0] for layer in range(LAYERS)]
        cls.gradients = [cls.explicit.kept[layer].grad[0] for layer in range(LAYERS)]

    def first_order(self, layer, head, row, key):
        return (self.gradients[layer][head, row] * without(self.weights[layer][head, row], key)).sum().item()

    def test_the_loss_of_a_dense_plan_is_the_models(self):
        expected = self.explicit.loss(self.prompt).item()
        self.assertAlmostEqual(self.model.loss(self.prompt), expected, delta=1e-4)
        self.assertAlmostEqual(self.model.loss(self.prompt, [[Rule(0, 1.0)] * HEADS] * LAYERS), expected, delta=1e-4)

    def test_the_gradient_foretells_what_moving_attention_from_a_key_does(self):
        step = 1e-4
        for layer, head, row, key in (0, 0, 100, 70), (0, 3, 127, 64), (1, 1, 85, 84), (1, 2, 110, 110):
            change = without(self.weights[layer][head, row], key)
            losses = []
            with torch.no_grad():
                for sign in 1, -1:
                    self.explicit.added = {0: (layer, head, row, sign * step * change)}
                    losses.append(self.explicit.loss(self.prompt).item())
            self.explicit.added = {}
            measured = (losses[0] - losses[1]) / (2 * step)
            # The third derivative's contribution at that step, and rounding.
            self.assertAlmostEqual(measured, self.first_order(layer, head, row, key), delta=1e-6 + 1e-3 * abs(measured))

    def test_influence_is_the_sum_of_what_each_masked_position_changes(self):
        expected = torch.zeros(LAYERS, HEADS, self.TOKENS, dtype=torch.float64)
        for layer, head in itertools.product(range(LAYERS), range(HEADS)):
            for row in range(64, 128):
                for key in range(64, row + 1):
                    expected[layer, head, row - key] += abs(self.first_order(layer, head, row, key))
        self.assertGreater(expected.max(), 1e-4)
        # float32 against double: each position's error is a few roundings of numbers of its row's size, which is a thousandth of the sums here.
        torch.testing.assert_close(self.model.influence(self.prompt), expected, rtol=2e-3, atol=1e-3 * expected.max().item())

    def test_two_runs_give_the_same_bits(self):
        self.assertTrue(torch.equal(self.model.influence(self.prompt), self.model.influence(self.prompt)))


class PartsTest(unittest.TestCase):
    def test_sums_by_distance_are_those_of_a_loop(self):
        for rows, first in (3, 0), (4, 5), (1, 2):
            values = torch.rand(rows, first + rows)
            expected = torch.zeros(first + rows, dtype=torch.float64)
            for row in range(rows):
                for key in range(first + row + 1):
                    expected[first + row - key] += values[row, key]
            torch.testing.assert_close(sums_by_distance(values, first), expected)

    def test_a_windowed_row_attends_to_the_sink_and_its_window(self):
        torch.manual_seed(2)
        tokens, windows = 320, torch.tensor([64, 100])
        q, k, v = torch.randn(2, tokens, 16), torch.randn(1, tokens, 16), torch.randn(1, tokens, 16)
        out = windowed_attention(q, k, v, 0.25, windows)
        for head, row in itertools.product(range(2), (0, 64, 127, 128, 200, 255, 256, 319)):
            keys = [key for key in range(row + 1) if row >= 256 or key < 64 or key > row - windows[head]]
            weights = torch.softmax(k[0, keys] @ q[head, row] * 0.25, dim=0)
            torch.testing.assert_close(out[head, row], weights @ v[0, keys], rtol=1e-4, atol=1e-5)


class ProgramTest(unittest.TestCase):
    HEADS, RULES = 3, 4

    def make(self, seed, budget):
        rng = np.random.default_rng(seed)
        densities = np.sort(rng.uniform(0.1, 1, (2, self.RULES)), axis=1)
        losses = -np.sort(-rng.uniform(0, 1, (2, self.HEADS, self.RULES)), axis=2)
        program = Program(losses, densities, budget)
        every = [choice for choice in itertools.product(range(self.RULES), repeat=self.HEADS)
                 if (densities[:, choice].mean(axis=1) <= budget + 1e-9).all()]
        return program, {choice: program.losses_of(list(choice)) for choice in every}

    def test_the_solver_finds_the_best_of_all_choices(self):
        for seed, budget in itertools.product(range(6), (0.4, 0.6, 0.8)):
            program, every = self.make(seed, budget)
            choice = program.solve(0, {})
            if not every:
                self.assertIsNone(choice)
                continue
            self.assertIn(tuple(choice), every)
            self.assertLessEqual(every[tuple(choice)][0], min(own[0] for own in every.values()) * 1.001 + 1e-9)

    def test_a_bound_on_the_other_length_holds(self):
        program, every = self.make(1, 0.7)
        bound = float(np.median([own[1] for own in every.values()]))
        choice = tuple(program.solve(0, {1: bound}))
        self.assertLessEqual(every[choice][1], bound + 1e-6)
        self.assertLessEqual(every[choice][0], min(own[0] for own in every.values() if own[1] <= bound) * 1.001 + 1e-9)

    def test_no_other_choice_is_better_at_every_length_than_one_that_is_kept(self):
        for seed in range(4):
            program, every = self.make(seed, 0.7)
            kept = pareto_choices(program, 2, steps=4)
            self.assertEqual(len(set(kept)), len(kept))
            for choice in kept:
                better = [own for own in every.values() if (own < every[choice] * 0.999 - 1e-9).all()]
                self.assertFalse(better, (seed, choice))

    def test_a_few_of_many_choices_are_spread(self):
        self.assertEqual(spread(list("abcdefg"), 3), ["a", "d", "g"])
        self.assertEqual(spread(list("ab"), 3), ["a", "b"])


class CommandTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.model = self.path("model")
        save_model(self.model)
        with open(self.path("prompts.jsonl"), "w") as file:
            for seed, num_tokens in enumerate((512, 768, 1024)):
                file.write(json.dumps({"id": str(num_tokens), "prompt_token_ids": make_prompt(num_tokens, seed).token_ids}) + "\n")

    def path(self, name):
        return os.path.join(self.directory, name)

    def run_tool(self, output, *options, model=None):
        """Exit status, output and error text."""
        done = subprocess.run([sys.executable, TOOL, "--model", model or self.model, "--input", self.path("prompts.jsonl"), "--lengths", "512,1024",
                               "--validate", "768", "--density", "0.75", "--output", self.path(output), "--threads", "2", *options],
                              capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, done.stderr

    def plan(self, output, *options):
        status, said, errors = self.run_tool(output, *options)
        self.assertEqual(status, 0, said + errors)
        with open(self.path(output)) as file:
            return file.read()

    def test_millrace_batch_runs_the_plan_at_the_density_foretold(self):
        patterns = json.loads(self.plan("plan.json"))
        done = subprocess.run([os.path.join(BIN_DIR, "millrace-batch"), "--model", self.model, "--device", "cpu", "--dtype", "float32", "--threads", "2",
                               "--crossover-tokens", "0", "--input", self.path("prompts.jsonl"), "--output", self.path("out"),
                               # All rows attend in the last layer, as in the others.
                               "--head-plan", self.path("plan.json"), "--recall-by-head"], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(patterns["layers"]), LAYERS)
        chosen = [layer.get("heads", {}).get(str(head), patterns["default"]) for layer in patterns["layers"] for head in range(HEADS)]
        rules = [Rule(0, 1.0) if text == "dense" else Rule(*(kind(word) for kind, word in zip((int, float), text.partition(":")[2].split(","))))
                 for text in chosen]
        with open(self.path("out/results.jsonl")) as file:
            for result in map(json.loads, file):
                num_tokens = int(result["id"])
                foretold = sum(density(rule.window(num_tokens), num_tokens) for rule in rules) / len(rules)
                self.assertLessEqual(foretold, 0.75)
                self.assertAlmostEqual(result["density"], foretold, delta=1e-4)

    def test_two_runs_give_the_same_plan(self):
        first = self.plan("first.json", "--influence", self.path("profile.npz"))
        self.assertEqual(self.plan("second.json"), first)
        self.assertEqual(self.plan("third.json", "--influence", self.path("profile.npz")), first)

    def rules_by_layer(self, vary):
        """The different rules of each layer's heads."""
        plan = json.loads(self.plan(f"{vary}.json", "--vary", vary, "--influence", self.path("profile.npz")))
        return [{layer.get("heads", {}).get(str(head), plan["default"]) for head in range(HEADS)} for layer in plan["layers"]]

    def test_heads_of_a_layer_or_of_the_model_share_a_rule(self):
        self.assertGreater(max(map(len, self.rules_by_layer("heads"))), 1)
        self.assertEqual([len(rules) for rules in self.rules_by_layer("layers")], [1] * LAYERS)
        self.assertEqual(len(set.union(*self.rules_by_layer("model"))), 1)

    def test_what_cannot_be_done_is_said_and_leaves_the_output_alone(self):
        with open(self.path("plan.json"), "w") as file:
            file.write("kept")
        with open(self.path("profile.npz"), "w") as file:
            file.write("no profile")
        for options, why in ((("--density", "0.1"), "--density 0.1: at 512 tokens the shortest span has"),
                             (("--density", "2"), "--density: is 2, expected a number more than 0, at most 1"),
                             (("--validate", "512"), "--validate: 512 is one of --lengths"),
                             (("--lengths", "640"), "prompt 512 has 512 tokens, the shortest length is 640"),
                             (("--input", "/nowhere"), "/nowhere: No such file or directory"),
                             (("--influence", self.path("profile.npz")), "not a profile"),
                             (("--model", "/nowhere"), "--model /nowhere: ")):
            with self.subTest(options=options):
                status, _, errors = self.run_tool("plan.json", *options)
                self.assertEqual(status, 2, errors)
                self.assertIn(why, errors)
                self.assertNotIn("Traceback", errors)
        with open(self.path("plan.json")) as file:
            self.assertEqual(file.read(), "kept")


if __name__ == "__main__":
    unittest.main(verbosity=2)
