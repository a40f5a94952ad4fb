#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/quality/plan.py: which program runs a plan, and with which options."""

import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench", "quality"))

from plan import Plan  # noqa: E402

OPTIONS = {"--model": "MODEL", "--threads": "2"}


class Plans(unittest.TestCase):
    def test_a_plan_goes_by_its_words_or_by_the_name_in_front(self):
        self.assertEqual(Plan("adaptive:0.2,0.8 --min-recall 0.9").name, "adaptive:0.2,0.8 --min-recall 0.9")
        self.assertEqual(Plan("sure=adaptive:0.2,0.8 --min-recall 0.9").name, "sure")
        self.assertEqual(Plan("adaptive:0.2,0.8").directory("out"), "out/adaptive_0.2_0.8")

    def test_a_head_plan_is_run_by_millrace_batch(self):
        self.assertEqual(Plan("sure=adaptive:0.2,0.8").command("bin", OPTIONS),
                         ["bin/millrace-batch", "--resume", "--model", "MODEL", "--threads", "2", "--head-plan", "adaptive:0.2,0.8"])

    def test_exact_masses_are_run_by_the_oracle_with_the_same_rule(self):
        for text, head_plan in ("exact:0.3,0.7", "adaptive:0.3,0.7"), ("oracle=exact:0.3", "adaptive:0.3"), ("exact", "adaptive"):
            self.assertEqual(Plan(text).command("bin", {}), ["bin/exact_index", "--resume", "--head-plan", head_plan])

    def test_a_plan_file_that_begins_like_it_is_none(self):
        self.assertEqual(Plan("exact.json").command("bin", {})[0], "bin/millrace-batch")

    def test_options_of_the_plan_replace_those_of_the_run(self):
        self.assertEqual(Plan("exact --rows 16 --threads=1").command("bin", OPTIONS),
                         ["bin/exact_index", "--resume", "--rows", "16", "--threads=1", "--model", "MODEL", "--head-plan", "adaptive"])


if __name__ == "__main__":
    unittest.main()
