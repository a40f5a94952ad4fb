#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/calibrate without torch: rules and their density, prompts and which of them are refused, the plan's text."""

import json
import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tools", "calibrate")]

from bad_input import BadInput  # noqa: E402
from plan_file import plan_json, write_whole  # noqa: E402
from spans import Rule, density, make_rules  # noqa: E402
from token_prompts import by_length, read_prompts  # noqa: E402


class SpansTest(unittest.TestCase):
    def test_a_window_is_at_least_a_page_and_at_most_everything(self):
        self.assertEqual(Rule(-512, 0.25).window(1024), 64)
        self.assertEqual(Rule(128, 0.25).window(1030), 128 + 257)
        self.assertEqual(Rule(2048, 0.5).window(1024), 1024)

    def test_density_is_what_millrace_reports(self):
        # bench/results/quality-4096-curve-2026-11-24.md: a-shape:64,384, a-shape:64,640, a-shape:64,1280.
        for window, reported in (384, 0.248), (640, 0.352), (1280, 0.579):
            self.assertAlmostEqual(density(window, 4096), reported, delta=1.1e-3)
        self.assertEqual(density(1000, 1000), 1)

    def test_no_two_rules_are_alike_at_all_lengths(self):
        lengths = (512, 768, 1024)
        rules = make_rules(lengths)
        windows = [tuple(rule.window(length) for length in lengths) for rule in rules]
        self.assertEqual(len(set(windows)), len(windows))
        self.assertIn((64, 64, 64), windows)
        self.assertEqual([rule.text() for rule, own in zip(rules, windows) if own == lengths], ["dense"])

    def test_rules_read_as_patterns(self):
        self.assertEqual(Rule(-512, 0.375).text(), "elastic:-512,0.375")
        self.assertEqual(Rule(64, 0.0).text(), "elastic:64,0")


class PromptsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "prompts.jsonl")

    def read(self, *lines):
        with open(self.path, "w") as file:
            file.write("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return read_prompts(self.path, vocabulary=100)

    def refused(self, *lines):
        with self.assertRaises(BadInput) as caught:
            self.read(*lines)
        return str(caught.exception).removeprefix(self.path)

    def test_the_loss_counts_at_probes_and_else_in_the_second_half(self):
        probed, plain = self.read({"id": "a", "prompt_token_ids": [5, 6, 7, 8], "probe_positions": [0, 3], "probe_target_ids": [9, 1]},
                                  {"prompt_token_ids": [5, 6, 7, 8]})
        self.assertEqual((probed.name, probed.targets), ("a", [(0, 9), (3, 1)]))
        self.assertEqual((plain.name, plain.targets), ("2", [(2, 8)]))

    def test_errors_name_file_line_field_and_value(self):
        good = {"prompt_token_ids": [1, 2, 3]}
        self.assertEqual(self.refused(good, {"prompt_token_ids": [1, 100]}), ":2: prompt_token_ids[1] is 100, expected an integer from 0 to 99")
        self.assertEqual(self.refused({"prompt_token_ids": [1, True]}), ":1: prompt_token_ids[1] is true, expected an integer from 0 to 99")
        self.assertEqual(self.refused({"prompt": "text"}), ":1: prompt_token_ids is null, expected a list of at least 2 integers")
        self.assertEqual(self.refused({**good, "probe_positions": [3]}), ":1: probe_positions[0] is 3, expected an integer from 0 to 2")
        self.assertEqual(self.refused({**good, "probe_positions": [0, 1], "probe_target_ids": [1]}),
                         ":1: probe_target_ids has 1 entries, probe_positions 2")
        self.assertEqual(self.refused({**good, "probe_positions": [2]}),
                         ":1: probe_positions has 2, the last token, and there are no probe_target_ids")
        self.assertEqual(self.refused({**good, "id": 7}), ":1: id is 7, expected text")
        self.assertEqual(self.refused([1]), ":1: [1]: expected an object")
        self.assertTrue(self.refused("{").startswith(":1: not JSON: "))
        self.assertEqual(self.refused(), ": no prompts")
        with self.assertRaisesRegex(BadInput, "^/nowhere: No such file"):
            read_prompts("/nowhere", 100)

    def test_a_prompt_belongs_to_the_largest_length_that_it_reaches(self):
        prompts = self.read(*({"id": str(n), "prompt_token_ids": [1] * n} for n in (300, 256, 200)))
        groups = by_length(prompts, (256, 192), self.path)
        self.assertEqual({length: [(p.name, len(p.token_ids), p.targets[-1][0]) for p in group] for length, group in groups.items()},
                         {192: [("200", 192, 190)], 256: [("300", 256, 254), ("256", 256, 254)]})

    def test_lengths_without_prompts_and_prompts_without_a_length_are_refused(self):
        prompts = self.read({"id": "short", "prompt_token_ids": [1] * 200})
        for lengths, why in ((256,), "prompt short has 200 tokens, the shortest length is 256"), ((128, 192, 256), "no prompt for length 128"), \
                ((64, ), "length 64: all rows run densely"):
            with self.assertRaisesRegex(BadInput, why):
                by_length(prompts, lengths, self.path)


class PlanFileTest(unittest.TestCase):
    def test_the_most_frequent_pattern_is_the_default(self):
        self.assertEqual(json.loads(plan_json([["dense", "elastic:64,0"], ["elastic:64,0", "elastic:64,0"]])),
                         {"default": "elastic:64,0", "layers": [{"heads": {"0": "dense"}}, {}]})

    def test_a_file_is_seen_whole(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "plan.json")
            write_whole(path, "1")
            write_whole(path, "2")
            with open(path) as file:
                self.assertEqual((file.read(), os.listdir(directory)), ("2", ["plan.json"]))


if __name__ == "__main__":
    unittest.main()
