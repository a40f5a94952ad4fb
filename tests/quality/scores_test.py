#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/quality/scores.py on numbers that were worked out by hand."""

import math
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench", "quality"))

from prompts import LOOKUP_KINDS  # noqa: E402
from scores import LOOKUPS, mean_and_error, plan_row  # noqa: E402


def prompt(name, targets, kinds):
    return {"id": name, "probe_target_ids": targets, "probe_kinds": kinds}


def result(tokens, logprobs, density=1.0):
    return {"probe_token_ids": tokens, "probe_logprobs": logprobs, "density": density, "recall": 1.0, "recall_p01": 1.0, "seconds": {"total": 2.0}}


class MeanAndError(unittest.TestCase):
    def test_equal_prompts_give_the_error_of_a_mean(self):
        # Shares .2, .4 and .9 of ten probes each: the error is their standard deviation, sqrt(.13), over sqrt(3).
        mean, error = mean_and_error([2, 4, 9], [10, 10, 10])
        self.assertAlmostEqual(mean, 0.5)
        self.assertAlmostEqual(error, math.sqrt(0.13 / 3))

    def test_a_prompt_counts_by_its_probes(self):
        # 1 of 1 and 0 of 3 are a share of 1/4. The sums differ from it by 3/4 and -3/4; 2 * 18/16 = 36/16, and the error is its root over 4.
        mean, error = mean_and_error([1, 0], [1, 3])
        self.assertAlmostEqual(mean, 0.25)
        self.assertAlmostEqual(error, 1.5 / 4)

    def test_prompts_that_are_alike_leave_no_error(self):
        self.assertEqual(mean_and_error([3, 6], [4, 8]), (0.75, 0))

    def test_one_prompt_has_no_error_that_is_known(self):
        self.assertEqual(mean_and_error([1], [4]), (0.25, None))


class PlanRow(unittest.TestCase):
    prompts = [prompt("a", [1, 2, 3], ["text", "text", "word list"]), prompt("b", [4, 5], ["text", "text"])]
    dense = {"a": result([1, 2, 3], [-1, -1, -1]), "b": result([4, 9], [-1, -3])}
    sparse = {"a": result([1, 7, 3], [-1, -2, -1], 0.25), "b": result([4, 8], [-1, -4], 0.75)}

    def test_kinds_are_judged_apart_and_beside_dense(self):
        row = plan_row("sparse", self.sparse, self.dense, self.prompts)
        text, words = row["kinds"]["text"], row["kinds"]["word list"]
        self.assertEqual(list(row["kinds"]), ["text", "word list"])
        self.assertEqual((text["prompts"], text["probes"]), (2, 4))
        self.assertEqual(text["accuracy"]["mean"], 0.5)
        self.assertEqual(text["accuracy_to_dense"]["mean"], -0.25)
        self.assertEqual(text["agreement"]["mean"], 0.5)  # a wrong token counts as different if dense attention does not have it
        self.assertEqual(text["nll"]["mean"], 2)
        self.assertEqual(text["nll_to_dense"], {"mean": 0.5, "error": 0})  # half a nat in each prompt
        self.assertEqual(words["accuracy_to_dense"], {"mean": 0, "error": None})
        self.assertEqual(row["density"]["mean"], 0.5)
        self.assertEqual(row["seconds"], 4)

    def test_look_ups_are_judged_apart_and_together(self):
        prompts = [prompt("a", [1, 2], [LOOKUP_KINDS[0], LOOKUP_KINDS[1]]), prompt("b", [3], [LOOKUP_KINDS[0]])]
        dense = {"a": result([1, 2], [-1, -1]), "b": result([3], [-1])}
        kinds = plan_row("sparse", {"a": result([1, 9], [-1, -4]), "b": result([3], [-1])}, dense, prompts)["kinds"]
        self.assertEqual({kind: scores["probes"] for kind, scores in kinds.items()}, {LOOKUP_KINDS[0]: 2, LOOKUP_KINDS[1]: 1, LOOKUPS: 3})
        self.assertEqual([scores["accuracy_to_dense"]["mean"] for scores in kinds.values()], [0, -1, -1 / 3])
        self.assertEqual(kinds[LOOKUPS]["nll_to_dense"]["mean"], 1)

    def test_dense_is_its_own_equal(self):
        text = plan_row("dense", self.dense, self.dense, self.prompts)["kinds"]["text"]
        self.assertEqual(text["agreement"], {"mean": 1, "error": 0})
        self.assertEqual(text["accuracy_to_dense"], {"mean": 0, "error": 0})


if __name__ == "__main__":
    unittest.main()
