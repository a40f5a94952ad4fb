#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A group that died or drained finds its cached prefixes again at its next start (--prefix-disk), and nothing that belongs to another."""
import glob
import os
import re
import signal
import sys
import unittest

from service import MODEL_DIR, PATIENCE_S, SOURCE_DIR, Service, ServiceTestCase, alive, make_prompt, tokens_for, wait_until

sys.path.insert(0, os.path.join(SOURCE_DIR, "tests/models"))
from reordered_model import write_reordered  # noqa: E402

PROMPT = make_prompt(tokens_for(2048), seed=4)
# All but the last 64 rows, in whole pages.
CACHED = (len(PROMPT["prompt_token_ids"]) - 64) // 64 * 64


class RestartTest(ServiceTestCase):
    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)
        self.disk = os.path.join(self.service.directory.name, "disk")

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def start(self, tp=2, cp=2, **options):
        # A fixed dtype: otherwise each start measures which is faster.
        settings = {"--dtype": "float32", "--prefix-disk": "256MiB", "--disk-directory": self.disk, "--threads": 1, **options}
        return self.service.start_group(*[word for setting in settings.items() for word in setting], tp=tp, cp=cp)

    def run_prompt(self, cached_tokens, cache="both", prompt=PROMPT, **fields):
        status, _, response = self.service.prefill(prompt, cache=cache, **fields)
        self.assertEqual((status, response["cached_tokens"]), (200, cached_tokens), response)
        self.assertEqual(response["first_token_id"], prompt["answer_token_ids"][0])
        return response

    def decoded(self, response):
        code, decoded = self.service.decode(response, "--tp", "2")
        self.assertEqual(code, 0, decoded)
        self.assertEqual((decoded["corrupt_pages"], decoded["generated_token_ids"]), (0, PROMPT["answer_token_ids"][:4]))
        return decoded

    def metric(self, name):
        _, _, text = self.service.get("/metrics")
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))

    def wait_until_kept(self, num_tokens):
        """Waits until all pages of these tokens are kept, in the fixture's 5 layers and 2 kv heads."""
        wait_until("kept pages", lambda: self.metric("millrace_prefix_cache_kept_pages_total") >= num_tokens // 64 * 10, PATIENCE_S)

    def wait_until_restored(self, num_tokens):
        wait_until("restored pages", lambda: self.metric("millrace_prefix_cache_restored_pages_total") >= num_tokens // 64 * 10, PATIENCE_S)

    def kill(self, group):
        ranks = list(self.service.ranks().values())
        for pid in [group.pid, *ranks]:
            os.kill(pid, signal.SIGKILL)
        group.wait(PATIENCE_S)
        wait_until("the end of its ranks", lambda: not any(map(alive, ranks)), PATIENCE_S)
        wait_until("the coordinator's notice", lambda: not self.service.ready(), PATIENCE_S)

    def drain(self, group):
        group.send_signal(signal.SIGUSR1)
        self.assertEqual(group.wait(PATIENCE_S), 0)

    def test_a_killed_group_finds_its_prefixes_and_answers_the_same(self):
        group = self.start()
        first = self.decoded(self.run_prompt(cached_tokens=0))
        self.wait_until_kept(CACHED)
        self.kill(group)
        self.assertEqual(self.metric("millrace_prefix_cache_kept_bytes"), 0)
        self.start()
        # Heartbeats carry the metric, after the message that reports the prefixes.
        wait_until("the group's metrics", lambda: self.metric("millrace_prefix_cache_kept_bytes") > 0, PATIENCE_S)
        foreseen = self.metric("millrace_prefix_foreseen_tokens_total")
        again = self.decoded(self.run_prompt(cached_tokens=CACHED))
        # The group has told its coordinator of the prefixes, in steps of 512 tokens.
        self.assertGreaterEqual(self.metric("millrace_prefix_foreseen_tokens_total") - foreseen, CACHED // 512 * 512)
        self.assertEqual(again["generated_token_ids"], first["generated_token_ids"])

    def test_a_drained_group_finds_its_prefixes(self):
        group = self.start()
        self.run_prompt(cached_tokens=0)
        self.drain(group)
        self.start()
        self.decoded(self.run_prompt(cached_tokens=CACHED))

    def test_prefixes_come_into_memory_before_a_prompt_asks(self):
        group = self.start()
        self.run_prompt(cached_tokens=0)
        self.drain(group)
        self.start()
        self.wait_until_restored(CACHED)
        # The files are no longer needed.
        for path in glob.glob(os.path.join(self.disk, "rank-*", "*.slots")):
            os.truncate(path, 0)
        self.decoded(self.run_prompt(cached_tokens=CACHED))
        self.assertEqual(self.metric("millrace_prefix_cache_corruptions_total"), 0)

    def test_a_rank_that_lost_its_files_ends_the_prefix_for_all(self):
        group = self.start()
        self.run_prompt(cached_tokens=0)
        self.drain(group)
        files = glob.glob(os.path.join(self.disk, "rank-1", "*"))
        self.assertEqual(len(files), 2)
        for path in files:
            os.remove(path)
        group = self.start()
        # Ranks 0 and 1 have the prompt's first stripe.
        self.decoded(self.run_prompt(cached_tokens=0))
        self.drain(group)
        self.start()
        self.decoded(self.run_prompt(cached_tokens=CACHED))

    def test_another_models_prefixes_are_not_used(self):
        group = self.start(tp=1, cp=1)
        self.run_prompt(cached_tokens=0)
        self.drain(group)
        other = os.path.join(self.service.directory.name, "fixture")  # the name that requests use
        write_reordered(MODEL_DIR, other, "reversed")
        group = self.start(tp=1, cp=1, **{"--model": other})
        self.run_prompt(cached_tokens=0)
        self.run_prompt(cached_tokens=CACHED)
        self.drain(group)
        self.start(tp=1, cp=1)
        self.run_prompt(cached_tokens=0)

    def test_another_sessions_prefixes_are_not_used(self):
        """LMCache#4385. What was kept for one salt and plan is for those alone, whoever asks first after the start."""
        group = self.start(tp=1, cp=1)
        self.run_prompt(cached_tokens=0, cache_salt="mine")
        self.wait_until_kept(CACHED)
        self.drain(group)
        self.start(tp=1, cp=1)
        self.run_prompt(cached_tokens=0, cache="read", cache_salt="yours")
        self.run_prompt(cached_tokens=0, cache="read")
        self.run_prompt(cached_tokens=0, cache="read", cache_salt="mine", head_plan="a-shape:128,512")
        self.run_prompt(cached_tokens=CACHED, cache="read", cache_salt="mine")

    def test_another_dtypes_prefixes_are_not_used(self):
        """dynamo#14416. The same model in another dtype of arithmetic, or of the cache, has pages of its own."""
        group = self.start(tp=1, cp=1)
        self.run_prompt(cached_tokens=0)
        self.wait_until_kept(CACHED)
        self.drain(group)
        for other in {"--dtype": "bfloat16"}, {"--kv-cache-dtype": "fp8"}:
            with self.subTest(other=other):
                group = self.start(tp=1, cp=1, **other)
                self.run_prompt(cached_tokens=0, cache="read")
                self.drain(group)

    def test_files_that_cannot_be_had_or_make_no_sense_cost_the_cache_and_not_the_start(self):
        os.makedirs(self.disk)
        with open(os.path.join(self.disk, "rank-0"), "w") as file:
            file.write("in the way")
        self.drain(self.start(tp=1, cp=1))
        os.remove(os.path.join(self.disk, "rank-0"))
        group = self.start(tp=1, cp=1)
        self.run_prompt(cached_tokens=0)
        self.drain(group)
        for path in glob.glob(os.path.join(self.disk, "rank-0", "*")):
            with open(path, "r+b") as file:
                file.write(os.urandom(200))
        group = self.start(tp=1, cp=1)
        self.run_prompt(cached_tokens=0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
