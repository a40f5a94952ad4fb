#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Short prompts side by side, each on one context-parallel rank of a group: answers, caches, and the loss of a rank meanwhile."""
import contextlib
import os
import re
import signal
import time
import unittest

from service import NOTICED_S, PATIENCE_S, InBackground, Service, ServiceTestCase, make_prompt, stop, tokens_for, wait_until

SHORTS = [make_prompt(tokens, seed=seed) for seed, tokens in enumerate((1024, 768, 896, 640), start=11)]
LONGER = make_prompt(tokens_for(6000), seed=21)
BUSY = make_prompt(tokens_for(2048), seed=24)
# Occupies a lane long enough to break something meanwhile, but is short enough to be given to a lane even on a busy machine.
BREAKABLE = make_prompt(tokens_for(3000), seed=23)
# Also with sanitizers so much longer than SHORTS that these may run between its layers.
LONG = make_prompt(max(tokens_for(8192), 4096), seed=22)
# Caches are pulled once the slowest of a test's prompts is done, which on a busy machine is minutes later.
LEASE_MS = 1800000
LAYER_TIMEOUT_S = 10


class SideBySideTestCase(ServiceTestCase):
    GRID = {"tp": 1, "cp": 2}

    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def post(self, prompt, request_id, **fields):
        return InBackground(lambda: self.service.prefill(prompt, request_id=request_id, lease_ms=LEASE_MS, **fields))

    def status_of(self, request_id):
        status, _, body = self.service.get(f"/v1/prefill/{request_id}")
        return body["status"] if status == 200 else None

    @contextlib.contextmanager
    def group_kept_busy(self):
        """Runs a prompt, whose post it yields, and holds it by a stopped rank: what is posted meanwhile waits until the end of the block."""
        self.busy_id, post = self.service.hold_in_layer(1, BUSY, layers_done=0, lease_ms=LEASE_MS)
        pid = self.service.ranks()[1]
        try:
            yield post
        finally:
            os.kill(pid, signal.SIGCONT)

    def post_behind_another(self, prompts, post=None, **fields):
        """Posts the prompts while another holds the group. Returns its post and theirs; all of them wait when the group is free again."""
        with self.group_kept_busy() as busy:
            posts = [(post or self.post)(prompt, f"waiting-{i}", **fields) for i, prompt in enumerate(prompts)]
            wait_until("all to wait", lambda: all(self.status_of(f"waiting-{i}") == "queued" for i in range(len(prompts))), PATIENCE_S)
        return busy, posts

    def num_side_by_side(self):
        return int(re.search(r"^millrace_side_by_side_total (\d+)$", self.service.get("/metrics")[2], re.M)[1])

    def check(self, post, prompt):
        """Checks the answer, and that a decode node generates the right tokens from the cache. Returns the response."""
        status, _, response = post.wait(PATIENCE_S)
        self.assertEqual(status, 200, response)
        self.assertEqual(response["first_token_id"], prompt["answer_token_ids"][0])
        code, decoded = self.service.decode(response)
        self.assertEqual(code, 0, decoded)
        self.assertEqual(decoded["generated_token_ids"], prompt["answer_token_ids"])
        return response

    def run_two_in_lanes(self, post=None):
        """Returns the posts of two prompts that have begun and take a while."""
        _, posts = self.post_behind_another([BREAKABLE] * 2, post)
        wait_until("both to run", lambda: all(self.status_of(f"waiting-{i}") == "running" for i in range(2)), PATIENCE_S)
        return posts

    def expect_a_new_group_serves(self):
        wait_until("the end of the broken group", lambda: not self.service.ranks(), 30)
        self.service.start_group(**self.GRID)
        self.check(self.post(SHORTS[0], "after"), SHORTS[0])


class ServingTest(SideBySideTestCase):
    def serve_four(self, **grid):
        self.service.start_group("--preempt-tokens", 0, **grid)
        busy, posts = self.post_behind_another(SHORTS)
        for prompt, post in zip(SHORTS, posts):
            response = self.check(post, prompt)
            self.assertEqual(len(response["manifest"]["shards"]), grid["tp"])
        self.check(busy, BUSY)
        self.assertEqual(self.num_side_by_side(), len(SHORTS))

    def test_prompts_that_wait_run_at_once_and_each_is_right(self):
        self.serve_four(tp=1, cp=2)

    def test_with_tensor_parallel_ranks_in_each_lane(self):
        self.serve_four(tp=2, cp=2)

    def test_behind_a_prefix_that_all_ranks_hold(self):
        self.service.close()
        self.service = Service(["--no-joining"])
        self.addCleanup(self.service.close)
        self.service.start_group("--preempt-tokens", 0, "--side-by-side-tokens", 1024, **self.GRID)
        self.check(self.post(LONGER, "first", cache="both"), LONGER)
        busy, posts = self.post_behind_another([LONGER] * 2, cache="both")
        for post in posts:
            response = self.check(post, LONGER)
            self.assertGreater(response["cached_tokens"], 5000)
            self.assertEqual(len(response["manifest"]["shards"]), 2)
        self.check(busy, BUSY)
        self.assertEqual(self.num_side_by_side(), 2)

    def test_behind_a_long_prompt_between_two_of_its_layers(self):
        self.service.start_group(**self.GRID)
        events = self.service.prefill_events(LONG)
        self.assertEqual([next(events)[0] for _ in range(3)], ["queued", "started", "layer"])
        posts = [self.post(prompt, f"short-{i}") for i, prompt in enumerate(SHORTS)]
        for prompt, post in zip(SHORTS, posts):
            self.check(post, prompt)
        done = list(events)[-1][1]
        self.assertEqual(done["first_token_id"], LONG["answer_token_ids"][0])
        self.assertGreater(done["set_aside_seconds"], 0)
        self.assertGreaterEqual(self.num_side_by_side(), 2)

    def test_a_lease_of_a_lane_is_renewed_and_released(self):
        self.service.start_group("--preempt-tokens", 0, **self.GRID)
        busy, posts = self.post_behind_another(SHORTS[:2])
        for i, (prompt, post) in enumerate(zip(SHORTS, posts)):
            lease = {"lease_id": self.check(post, prompt)["lease"]["lease_id"]}
            path = f"/v1/prefill/waiting-{i}/lease"
            status, _, body = self.service.request("POST", f"{path}:renew", {**lease, "lease_ms": 90000})
            self.assertEqual(status, 200, body)
            status, _, body = self.service.request("POST", f"{path}:release", lease)
            self.assertEqual(status, 200, body)
        busy.wait(PATIENCE_S)

    def test_without_it_they_run_one_after_the_other(self):
        self.service.start_group("--side-by-side-tokens", 0, "--preempt-tokens", 0, **self.GRID)
        busy, posts = self.post_behind_another(SHORTS[:2])
        for prompt, post in zip(SHORTS, posts):
            self.assertEqual(self.check(post, prompt)["manifest"]["cp"], 2)
        busy.wait(PATIENCE_S)
        self.assertEqual(self.num_side_by_side(), 0)


class LostCoordinatorTest(SideBySideTestCase):
    def post_to_one_that_dies(self, prompt, request_id):
        def call():
            with contextlib.suppress(ConnectionError):
                self.service.prefill(prompt, request_id=request_id, lease_ms=LEASE_MS)
        return InBackground(call)

    def num_leases(self):
        found = re.search(r"^millrace_leases\{.*\} (\d+)$", self.service.get("/metrics")[2], re.M)
        return found and int(found[1])

    def test_nothing_stays_of_what_nobody_can_ask_for(self):
        self.service.start_group("--threads", 1, "--preempt-tokens", 0, **self.GRID)
        self.run_two_in_lanes(self.post_to_one_that_dies)
        self.service.restart_coordinator()
        wait_until("the end of both", lambda: self.service.logs().count("was cancelled while it ran side by side") == 2, PATIENCE_S)
        self.check(self.post(SHORTS[0], "after"), SHORTS[0])
        # The lease of the prompt before them, which the group has reported, and that of the prompt after them.
        wait_until("two leases", lambda: self.num_leases() == 2, PATIENCE_S)
        self.assertEqual([self.status_of(request_id) for request_id in (self.busy_id, "waiting-0", "waiting-1")], ["done", None, None])


class LostRankTest(SideBySideTestCase):
    def expect_both_lost(self, posts, since, within_s):
        for post in posts:
            status, headers, body = post.wait(PATIENCE_S)
            self.assertEqual((status, body["error"]["type"]), (503, "peer_lost"), body)
            self.assertIn("Retry-After", headers)
            self.assertLess(post.ended_at - since, within_s)

    def test_a_rank_that_is_killed_costs_each_a_retriable_error(self):
        self.service.start_group("--threads", 1, "--preempt-tokens", 0, **self.GRID)
        posts = self.run_two_in_lanes()
        self.service.kill_rank(1)
        self.expect_both_lost(posts, time.monotonic(), NOTICED_S)
        self.expect_a_new_group_serves()

    def test_a_rank_that_is_stopped_is_found_by_the_others_which_wait_for_its_lane(self):
        self.service.start_group("--threads", 1, "--preempt-tokens", 0, "--layer-timeout-s", LAYER_TIMEOUT_S, **self.GRID)
        posts = self.run_two_in_lanes()
        os.kill(self.service.ranks()[1], signal.SIGSTOP)
        # The other lane ends first; by then the rank has been silent for long enough, or soon will be.
        self.expect_both_lost(posts, time.monotonic(), LAYER_TIMEOUT_S + NOTICED_S + 60)
        self.service.wait_for_log("rank 1")
        self.expect_a_new_group_serves()


if __name__ == "__main__":
    unittest.main()
