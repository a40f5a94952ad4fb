#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""millrace_kv.prefill_worker, which the prefill workers for routers share: the parameters that it answers, and which prompts it declines."""
import argparse
import asyncio
import os
import signal
import sys
import unittest

from service import SOURCE_DIR, Service, ServiceTestCase, make_prompt, tokens_for, wait_until

sys.path.insert(0, os.path.join(SOURCE_DIR, "sdk/python"))
from millrace_kv import MillraceError  # noqa: E402
from millrace_kv.coordinator import prompt_digest  # noqa: E402
from millrace_kv.prefill_worker import PrefillWorker, add_options  # noqa: E402

PROMPT = make_prompt(1024, seed=1)["prompt_token_ids"]
LONG, NEXT = (make_prompt(tokens_for(16384), seed)["prompt_token_ids"] for seed in (2, 3))  # too long to run between the layers of another


class PrefillWorkerTest(ServiceTestCase):
    """One service for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group(cp=2)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def worker(self, *options):
        parser = argparse.ArgumentParser()
        add_options(parser)
        return PrefillWorker(parser.parse_args(["--coordinator", f"127.0.0.1:{self.service.http_port}", "--min-tokens", "512", *options]))

    def refused(self, code, worker, token_ids):
        with self.assertRaises(MillraceError) as raised:
            asyncio.run(worker.prefill(token_ids))
        self.assertEqual(raised.exception.code, code, raised.exception)
        return str(raised.exception)

    def busy(self):
        """Makes the group compute a long prompt until the test ends."""
        running = self.worker().coordinator.prefill("fixture", LONG)
        self.addCleanup(running.ended.wait, 60)
        self.addCleanup(running.close)
        self.service.wait_for_layers(running.request_id, 0)

    def statuses(self):
        """{id: its error, or None} of the prompts that have ended."""
        return {entry["request_id"]: entry.get("error") for entry in self.service.get("/overview")[2]["ended"]}

    def queued(self):
        return self.service.get("/overview")[2]["queued"]

    def test_the_parameters_lead_to_the_prompts_cache(self):
        worker = self.worker()
        params = asyncio.run(worker.prefill(PROMPT))["millrace"]
        self.assertEqual(params["prompt_sha256"], prompt_digest(PROMPT))
        followed = worker.coordinator.follow(params["request_id"])
        self.assertTrue(followed.ended.wait(120))
        manifest = followed.result()
        self.assertEqual((manifest.lease_id, manifest.num_tokens), (params["lease_id"], len(PROMPT)))
        worker.wait()
        self.assertTrue(worker.is_idle())
        worker.close()
        worker.coordinator.release(params["request_id"], params["lease_id"])

    def test_the_parameters_are_there_while_the_prefill_runs(self):
        worker = self.worker()
        params = asyncio.run(worker.prefill(LONG))["millrace"]
        state = self.service.get(f"/v1/prefill/{params['request_id']}")[2]
        self.assertEqual(state["status"], "running", state)
        self.assertFalse(worker.is_idle())
        worker.close()
        wait_until("the end", worker.is_idle, 60)
        self.assertEqual(self.statuses()[params["request_id"]], "cancelled")

    def test_short_prompts_are_not_asked_for(self):
        before = len(self.statuses())
        self.assertIn("511 tokens", self.refused("short", self.worker(), PROMPT[:511]))
        self.assertEqual(len(self.statuses()), before)

    def test_one_that_finds_no_room_in_time_is_cancelled(self):
        self.busy()
        self.refused("deadline_exceeded", self.worker("--max-wait", "0.5"), NEXT)
        wait_until("an empty queue", lambda: not self.queued(), 10)

    def test_a_cancelled_call_cancels_a_prompt_that_waits(self):
        self.busy()

        async def give_up():
            call = asyncio.ensure_future(self.worker().prefill(NEXT))
            while not await asyncio.to_thread(self.queued):
                pass
            call.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await call
        asyncio.run(give_up())
        wait_until("an empty queue", lambda: not self.queued(), 10)

    def test_one_that_should_take_too_long_is_not_posted(self):
        coordinator = self.worker().coordinator
        for seed in range(10, 20):  # the cached pages of a prompt teach nothing
            self.assertTrue(coordinator.prefill("fixture", make_prompt(2048, seed)["prompt_token_ids"], lease_ms=1000).ended.wait(120))
            if coordinator.forecast("fixture", NEXT[:2048])["is_learnt"]:
                break
        before = len(self.statuses())
        self.assertIn("--decline-after", self.refused("exhausted", self.worker("--decline-after", "0.00001"), NEXT[:2048]))
        self.assertEqual(len(self.statuses()), before)

    def test_models_that_the_coordinator_lacks_are_named(self):
        self.assertIn("no model 'other'; it has 'fixture'", self.refused("not_found", self.worker("--coordinator-model", "other"), PROMPT))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
