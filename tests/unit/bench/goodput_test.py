#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/engines/goodput.py without an engine: the trace, percentiles, objectives, and the choice of a setting. Standard library only."""
import json
import math
import pathlib
import statistics
import sys
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench" / "engines"))

import goodput  # noqa: E402
from arrivals import log_middle, poisson_arrivals  # noqa: E402
from objective import Objective, percentile  # noqa: E402

TOKENS = 16384, 131072


def outcome(first_s=1.0, gaps_s=(0.01,) * 199, is_complete=True, is_wrong=False):
    return types.SimpleNamespace(first_s=first_s, gaps_s=list(gaps_s), is_complete=is_complete, is_wrong=is_wrong)


class ArrivalsTest(unittest.TestCase):
    def test_gaps_are_exponential_and_lengths_log_uniform(self):
        arrivals = poisson_arrivals(2.0, 5000, TOKENS, seed=1)
        gaps = [later.at_s - earlier.at_s for earlier, later in zip(arrivals, arrivals[1:])]
        # Of 10,000 arrivals: five standard errors.
        self.assertAlmostEqual(statistics.mean(gaps), 0.5, delta=0.025)
        self.assertAlmostEqual(statistics.stdev(gaps), 0.5, delta=0.05)
        octaves = [sum(1 << power <= arrival.num_tokens < 2 << power for arrival in arrivals) / len(arrivals) for power in (14, 15, 16)]
        for share in octaves:
            self.assertAlmostEqual(share, 1 / 3, delta=0.025)
        self.assertTrue(all(TOKENS[0] <= arrival.num_tokens <= TOKENS[1] for arrival in arrivals))
        self.assertLess(arrivals[-1].at_s, 5000)

    def test_another_rate_scales_the_same_trace(self):
        slow, fast = poisson_arrivals(0.5, 400, TOKENS, seed=3), poisson_arrivals(1.0, 200, TOKENS, seed=3)
        self.assertGreater(len(slow), 100)
        self.assertEqual([one.num_tokens for one in slow], [one.num_tokens for one in fast])
        for one, other in zip(slow, fast, strict=True):
            self.assertAlmostEqual(one.at_s, 2 * other.at_s)

    def test_the_seed_decides(self):
        self.assertEqual(poisson_arrivals(1, 50, TOKENS, 1), poisson_arrivals(1, 50, TOKENS, 1))
        self.assertNotEqual(poisson_arrivals(1, 50, TOKENS, 1), poisson_arrivals(1, 50, TOKENS, 2))

    def test_the_middle_halves_the_octaves(self):
        self.assertEqual(log_middle(1024, 4096), 2048)


class ObjectiveTest(unittest.TestCase):
    objective = Objective(first_s=5, gap_s=0.05)

    def test_percentiles_are_by_nearest_rank(self):
        values = [5, 1, 4, 2, 3]
        self.assertEqual([percentile(values, share) for share in (0, 0.2, 0.21, 0.5, 0.99, 1)], [1, 1, 2, 3, 5, 5])
        self.assertEqual(percentile(range(1, 201), 0.99), 198)
        self.assertIsNone(percentile([], 0.5))

    def test_the_first_token_must_be_in_time(self):
        self.assertTrue(self.objective.is_met(outcome(first_s=5)))
        self.assertFalse(self.objective.is_met(outcome(first_s=5.001)))

    def test_an_answer_must_be_whole_and_right(self):
        self.assertFalse(self.objective.is_met(outcome(is_complete=False)))
        self.assertFalse(self.objective.is_met(outcome(first_s=None, gaps_s=(), is_complete=False)))
        self.assertFalse(self.objective.is_met(outcome(is_wrong=True)))
        self.assertFalse(self.objective.is_met_steadily(outcome(is_wrong=True)))

    def test_the_mean_gap_or_nearly_all_gaps(self):
        one_stall, two_stalls = [0.01] * 198 + [3.0], [0.01] * 197 + [1.5] * 2
        self.assertEqual([self.objective.is_met(outcome(gaps_s=gaps)) for gaps in (one_stall, two_stalls, [0.05] * 199, [0.0501] * 199)],
                         [True, True, True, False])
        self.assertEqual([self.objective.is_met_steadily(outcome(gaps_s=gaps)) for gaps in (one_stall, two_stalls, [0.05] * 199, [0.0501] * 199)],
                         [True, False, True, False])

    def test_an_answer_of_one_token_has_no_gaps(self):
        self.assertTrue(self.objective.is_met(outcome(gaps_s=())))
        self.assertTrue(self.objective.is_met_steadily(outcome(gaps_s=())))

    def test_goodput_counts_prompts_that_met_it(self):
        outcomes = [outcome(), outcome(first_s=7), outcome(gaps_s=[0.01] * 197 + [1.5] * 2), outcome(first_s=None, gaps_s=(), is_complete=False)]
        figures = self.objective.summary(outcomes, seconds=10)
        self.assertEqual((figures["prompts"], figures["answered"], figures["goodput, 1/s"], figures["steady goodput, 1/s"]), (4, 3, 0.2, 0.1))
        self.assertEqual((figures["of all"], figures["steady, of all"]), (0.5, 0.25))
        self.assertEqual((figures["first token p50, s"], figures["p99, s"]), (1.0, None))
        self.assertEqual((figures["between tokens p50, ms"], figures["p99, ms"]), (10.0, 10.0))

    def test_without_prompts(self):
        figures = self.objective.summary([], seconds=10)
        self.assertEqual((figures["goodput, 1/s"], figures["of all"], figures["first token p50, s"]), (0, 0, None))


class SettingTest(unittest.TestCase):
    @staticmethod
    def row(setting, met, steady, first_s):
        return {"max_num_batched_tokens": setting, "goodput, 1/s": met, "steady goodput, 1/s": steady, "first token p50, s": first_s}

    def test_goodput_then_steadiness_then_the_first_token(self):
        self.assertEqual(goodput.best_setting([self.row(512, 0.2, 0.2, 1.0), self.row(2048, 0.3, 0.1, 2.0)]), 2048)
        self.assertEqual(goodput.best_setting([self.row(512, 0.3, 0.2, 2.0), self.row(2048, 0.3, 0.1, 1.0)]), 512)
        self.assertEqual(goodput.best_setting([self.row(512, 0.3, 0.2, None), self.row(2048, 0.3, 0.2, 9.0)]), 2048)


class ReplicasTest(unittest.TestCase):
    @staticmethod
    def gpus(name, group, vllm, tp=1):
        return goodput.replica_gpus(types.SimpleNamespace(group_gpus=group, vllm_gpus=vllm, vllm_tp=tp), name)

    def test_both_systems_have_the_same_gpus(self):
        self.assertEqual(self.gpus("alone", "0", "1"), ["0", "1"])
        self.assertEqual(self.gpus("millrace", "0", "1"), ["1"])
        self.assertEqual(self.gpus("alone", "0,1", "2,3", tp=2), ["0,1", "2,3"])
        self.assertEqual(self.gpus("millrace", "0,1", "2,3", tp=2), ["2,3"])

    def test_on_a_cpu_a_group_stands_for_a_replica(self):
        self.assertEqual((self.gpus("alone", "", ""), self.gpus("millrace", "", "")), (["", ""], [""]))


class TableTest(unittest.TestCase):
    def test_rows_may_have_columns_of_their_own(self):
        text = goodput.table([{"system": "alone", "p99, s": None}, {"system": "millrace", "p99, s": 1.23456, "counts": {"pulled": 3, "short": 1}}],
                             {"date": "today"})
        self.assertEqual(text.splitlines(), ["- date: today", "", "| system | p99, s | counts |", "|---|---|---|", "| alone | never |  |",
                                             "| millrace | 1.23 | pulled 3, short 1 |", ""])

    def test_without_rows_it_says_what_was_measured(self):
        self.assertEqual(goodput.table([], {"date": "today"}), "- date: today\n\n")

    def test_figures_are_json(self):
        figures = Objective().summary([outcome(first_s=None, gaps_s=(), is_complete=False)], 1)
        self.assertEqual(json.loads(json.dumps(figures, allow_nan=False))["p99, s"], None)
        self.assertFalse(any(isinstance(value, float) and math.isinf(value) for value in figures.values()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
