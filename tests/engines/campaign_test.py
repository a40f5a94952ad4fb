#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/engines/openai_campaign.py when something fails on its own side. Needs no engine; standard library only."""
import contextlib
import io
import os
import subprocess
import sys
import threading
import types
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "bench", "engines"), os.path.join(ROOT, "tests", "e2e")]
os.environ.setdefault("MILLRACE_SOURCE_DIR", ROOT)
os.environ.setdefault("MILLRACE_BIN_DIR", "")  # nothing is started

from endless_prompts import EndlessPrompts  # noqa: E402
from openai_campaign import Campaign, by_grid, table  # noqa: E402

LATE = subprocess.TimeoutExpired("make_prompts.py", 60)
ANSWER = [7, 8, 9, 10]


def refuse(seeds, cause):
    """A make_prompt that fails for some seeds."""
    def make(num_tokens, seed):
        if seed in seeds:
            raise cause
        return {"prompt_token_ids": [seed] * num_tokens, "answer_token_ids": ANSWER}
    return make


class EndlessPromptsTest(unittest.TestCase):
    def test_one_that_cannot_be_made_says_why_and_the_next_one_is_made(self):
        prompts = EndlessPrompts(3, 3, refuse({101}, LATE))
        self.assertEqual(prompts.next()["prompt_token_ids"], [100] * 3)
        with self.assertRaisesRegex(RuntimeError, "no prompt of 3 tokens with seed 101: .*make_prompts.py.* timed out after 60 seconds"):
            prompts.next()
        self.assertEqual(prompts.next()["prompt_token_ids"], [102] * 3)

    def test_a_process_that_fails_is_quoted(self):
        prompts = EndlessPrompts(3, 3, refuse({100}, subprocess.CalledProcessError(1, "make_prompts.py", stderr=b"no room\n")))
        with self.assertRaisesRegex(RuntimeError, "no room$"):
            prompts.next()

    def test_another_is_asked_for_while_one_is_made(self):
        def make(num_tokens, seed):
            return [seed, *(prompts.next() if seed == 100 else [])]
        prompts = EndlessPrompts(3, 3, make)
        self.assertEqual(prompts.next(), [100, 101])

    def test_lengths_are_the_same_in_every_run(self):
        def lengths():
            prompts = EndlessPrompts(1, 1000, lambda num_tokens, seed: num_tokens)
            return [prompts.next() for _ in range(5)]
        self.assertEqual(lengths(), lengths())
        self.assertEqual(len(set(lengths())), 5)


class CampaignTest(unittest.TestCase):
    def load(self, seeds, aborts=0, restarts=0, service=None, complete=lambda tokens, max_tokens: (200, ANSWER)):
        """Sends 6 prompts from 2 clients. Returns (seeds of the answered prompts, the clients' errors, the output)."""
        arguments = types.SimpleNamespace(prompts=6, concurrency=2, kills=0, restarts=restarts, restart_within_s=0, aborts=aborts, abort_within_s=0,
                                          limit_s=float("inf"), answer_tokens=4)
        server = types.SimpleNamespace(complete=complete, abandon=lambda tokens, max_tokens, after: True)
        campaign = Campaign(arguments, service, server, EndlessPrompts(3, 3, refuse(seeds, LATE)))
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            outcomes, _, restarted, _, failures = campaign._load(None, 2, 2)
        self.assertEqual(restarted, restarts)
        self.assertLessEqual({verdict for _, verdict, _ in outcomes}, {"right"})
        return sorted(prompt["prompt_token_ids"][0] for prompt, _, _ in outcomes), failures, said.getvalue()

    def test_a_client_that_fails_ends_no_other_and_is_told_with_its_cause(self):
        answered, failures, said = self.load({101})
        self.assertEqual(answered, [100, 102, 103, 104, 105])
        self.assertEqual([str(why).partition(":")[0] for why in failures], ["no prompt of 3 tokens with seed 101"])
        self.assertRegex(said, r"(?s)Traceback.*TimeoutExpired.*timed out after 60 seconds.*Traceback.*RuntimeError: no prompt of 3 tokens")

    def test_one_that_hangs_up_may_fail_as_well(self):
        # The seeds of 6 prompts, and of one that is given up.
        answered, failures, _ = self.load(range(100, 107), aborts=1)
        self.assertEqual((answered, len(failures)), ([], 3))

    def test_prompts_continue_until_the_last_restart(self):
        answered, restarted, ten = [], [], threading.Event()

        def complete(tokens, max_tokens):
            answered.append(tokens)
            if len(answered) == 10:
                ten.set()
            return 200, ANSWER

        def restart():
            if restarted:
                ten.wait(60)  # the second one, while more than the 6 prompts are sent
            restarted.append(len(answered))
        service = types.SimpleNamespace(restart_coordinator=restart, ready=lambda: True)
        self.load(set(), restarts=2, service=service, complete=complete)
        self.assertEqual(len(restarted), 2)
        self.assertGreaterEqual(restarted[1], 10)


class GridsTest(unittest.TestCase):
    @staticmethod
    def arguments(**given):
        return types.SimpleNamespace(**{"groups": ["1x1", "2x2"], "kv_cache_dtype": ["auto"], "kills": [0], "restarts": [0], "aborts": [0], **given})

    def test_values_are_for_all_grids_or_for_each(self):
        grids = by_grid(self.arguments(kv_cache_dtype=["auto", "fp8"], kills=[7], aborts=[0, 3]))
        self.assertEqual([(grid.kv_cache_dtype, grid.kills, grid.restarts, grid.aborts) for grid in grids], [("auto", 7, 0, 0), ("fp8", 7, 0, 3)])

    def test_another_number_of_values_is_refused(self):
        with self.assertRaisesRegex(ValueError, "--kv-cache-dtype takes one value, or 2"):
            by_grid(self.arguments(kv_cache_dtype=["auto"] * 3))

    def test_kills_and_restarts_of_one_grid_are_refused(self):
        by_grid(self.arguments(kills=[1, 0], restarts=[0, 1]))
        with self.assertRaisesRegex(ValueError, "without --restarts"):
            by_grid(self.arguments(kills=[1, 0], restarts=[1]))

    def test_rows_of_a_table_may_lack_figures_of_others(self):
        self.assertIn("| kills |  | 2 |", table([{"group": "1x1"}, {"group": "2x2", "kills": 2}], {}))


if __name__ == "__main__":
    unittest.main(verbosity=2)
