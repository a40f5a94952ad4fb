#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A decode node pulls the cache layer by layer during the prefill, gets the same bytes, and ends cleanly."""
import os
import re
import signal
import subprocess
import sys
import unittest

from service import (BIN_DIR, MODEL_DIR, PATIENCE_S, Service, ServiceTestCase, StreamingDecode, make_prompt, tokens_for,
                     wait_until)

SHORT = make_prompt(1024, seed=1)
# Long enough for the test to act during its prefill.
MEDIUM = make_prompt(tokens_for(4096), seed=2)
NUM_LAYERS = 5


def names(events):
    return [name for name, _ in events]


class StreamingTest(ServiceTestCase):
    """Prefill with TP 2; one service for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group()

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def streamed(self, prompt, **fields):
        return self.service.prefill_events(prompt, handover="streaming", **fields)

    def assert_told_of_the_end(self, request_id, message):
        """Checks that the message names the end of the request or, if the node was not connected yet, the end of its lease."""
        self.assertIn(f"request '{request_id}'", message)
        self.assertRegex(message, "is gone: aborted|the server knows no such lease: it is over")

    def test_events_are_the_manifest_then_every_layer_then_the_result(self):
        events = list(self.streamed(SHORT))
        self.assertEqual(names(events), ["queued", "started", "manifest"] + ["layer"] * NUM_LAYERS + ["done"])
        self.assertEqual([data["layer"] for name, data in events if name == "layer"], list(range(NUM_LAYERS)))
        early, late = events[2][1]["manifest"], events[-1][1]["manifest"]
        self.assertEqual(set(late) - set(early), {"first_token_id", "top_logprobs", "density", "recall", "recall_p01", "dense_for_length", "tiers"})
        self.assertEqual(early, {field: late[field] for field in early})

    def test_streaming_pull_equals_an_at_end_pull_and_answers_right(self):
        for tp in "1", "2":
            with self.subTest(tp=tp), StreamingDecode("--tp", tp) as node:
                for name, data in self.streamed(MEDIUM):
                    node.pass_on(name, data)
                code, streamed = node.result()
                self.assertEqual(code, 0, streamed)
                code, at_end = self.service.decode(data, "--tp", tp)
                self.assertEqual(code, 0, at_end)
                self.assertEqual(streamed["generated_token_ids"], MEDIUM["answer_token_ids"])
                self.assertEqual(len(streamed["cache_checksums"]), int(tp))
                for same in "cache_checksums", "generated_token_ids", "pulled_pages", "pulled_bytes":
                    self.assertEqual(streamed[same], at_end[same], same)
                self.assertEqual(streamed["corrupt_pages"], 0)
                self.assertEqual(at_end["pulled_before_done_bytes"], 0)

    def test_hot_pages_first_brings_the_same_cache_streaming_and_at_the_end(self):
        with StreamingDecode("--order", "hot") as node:
            for name, data in self.streamed(MEDIUM):
                node.pass_on(name, data)
            code, streamed = node.result()
        self.assertEqual(code, 0, streamed)
        code, by_position = self.service.decode(data)
        self.assertEqual(code, 0, by_position)
        code, hot_first = self.service.decode(data, "--order", "hot", "--hot-share", "0.9")
        self.assertEqual(code, 0, hot_first)
        for same in "cache_checksums", "generated_token_ids", "pulled_pages", "pulled_bytes":
            self.assertEqual(streamed[same], by_position[same], same)
            self.assertEqual(hot_first[same], by_position[same], same)
        self.assertLess(hot_first["hot_pages"], streamed["hot_pages"])
        self.assertLess(streamed["hot_pages"], streamed["pulled_pages"])

    def test_the_client_feeds_a_decode_node(self):
        prompt_path = os.path.join(self.service.directory.name, "prompt.json")
        with open(prompt_path, "w") as file:
            file.write(str(SHORT["prompt_token_ids"]))
        client = subprocess.Popen(
            [os.path.join(BIN_DIR, "millrace-client"), "--server", f"127.0.0.1:{self.service.http_port}", "prefill",
             "--prompt", prompt_path, "--model", "fixture", "--handover", "streaming", "--events"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        node = subprocess.run([os.path.join(BIN_DIR, "millrace-decode"), "--events", "-", "--model", MODEL_DIR,
                               "--max-tokens", "4"], stdin=client.stdout, capture_output=True, timeout=PATIENCE_S, text=True)
        client.stdout.close()
        self.assertEqual(client.wait(PATIENCE_S), 0)
        self.assertEqual(node.returncode, 0, node.stderr)
        self.assertIn(f'"generated_token_ids":{SHORT["answer_token_ids"]}'.replace(" ", ""), node.stdout)

    def test_cancelled_in_the_middle_the_puller_says_which_request_and_the_group_goes_on(self):
        with StreamingDecode() as node:
            for name, data in self.streamed(MEDIUM, request_id="unwanted"):
                node.pass_on(name, data)
                if name == "layer" and data["layer"] == 0:
                    self.assertEqual(self.service.request("DELETE", "/v1/prefill/unwanted")[0], 200)
            self.assertEqual(name, "error", data)
            code, message = node.result()
        self.assertEqual(code, 1, message)
        self.assertIn("request 'unwanted'", message)
        self.assertEqual(self.service.prefill(SHORT)[0], 200)

    def test_a_puller_that_did_not_hear_of_the_cancel_is_told_by_the_ranks(self):
        with StreamingDecode() as node:
            for name, data in self.streamed(MEDIUM, request_id="unheard"):
                if name == "layer":
                    self.service.request("DELETE", "/v1/prefill/unheard")
                elif name != "error":
                    node.pass_on(name, data)
            # Once the group serves another request, it has finished with the cancelled one.
            self.assertEqual(self.service.prefill(SHORT)[0], 200)
            node.pass_on("layer", {"request_id": "unheard", "layer": 0})
            code, message = node.result()
        self.assertEqual(code, 1, message)
        self.assert_told_of_the_end("unheard", message)

    def test_a_client_that_leaves_takes_the_cache_along(self):
        with StreamingDecode() as node:
            events = self.streamed(MEDIUM, request_id="left")
            for name, data in events:
                node.pass_on(name, data)
                if name == "layer":
                    break
            events.close()
            self.assertEqual(self.service.prefill(SHORT)[0], 200)
            for layer in range(1, NUM_LAYERS):
                node.pass_on("layer", {"request_id": "left", "layer": layer})
            code, message = node.result()
        self.assertEqual(code, 1, message)
        self.assert_told_of_the_end("left", message)

    def test_streaming_without_a_stream_and_other_words_are_refused(self):
        status, _, body = self.service.prefill(SHORT, handover="streaming")
        self.assertEqual((status, body["error"]["param"]), (400, "handover"))
        self.assertIn("requires 'stream'", body["error"]["message"])
        status, _, body = self.service.prefill(SHORT, handover="push", stream=True)
        self.assertEqual((status, body["error"]["param"]), (400, "handover"))
        self.assertIn("must be at-end or streaming", body["error"]["message"])
        self.assertEqual(self.service.prefill(SHORT, handover="at-end")[0], 200)


class OwnGroupTest(ServiceTestCase):
    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start_group()

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def bytes_sent(self):
        """The total of all ranks, as of the group's last command."""
        _, _, text = self.service.get("/metrics")
        return sum(float(n) for n in re.findall(r'^millrace_kv_bytes_sent_total\{[^}]*\} (\S+)$', text, re.M))

    def test_the_cache_leaves_before_the_result_is_known(self):
        with StreamingDecode() as node:
            for name, data in self.service.prefill_events(SHORT, handover="streaming"):
                if name != "done":
                    node.pass_on(name, data)
            cache_bytes = sum(int(tier["bytes"]) for tier in data["manifest"]["tiers"])
            wait_until("the whole cache to leave", lambda: self.bytes_sent() >= cache_bytes, 60)
            node.pass_on(name, data)
            code, report = node.result()
        self.assertEqual(code, 0, report)
        self.assertEqual(report["generated_token_ids"], SHORT["answer_token_ids"])
        self.assertEqual(report["pulled_bytes"], cache_bytes)
        # There is one pull per layer and kv head, each requested once the one before has arrived.
        self.assertGreaterEqual(report["pulled_before_done_share"], 0.9)

    def test_a_puller_of_a_group_that_loses_a_rank_says_which_request(self):
        self.lose_a_rank()

    def test_a_puller_of_hot_pages_first_does_too(self):
        self.lose_a_rank("--order", "hot")

    def lose_a_rank(self, *options):
        with StreamingDecode(*options) as node:
            for name, data in self.service.prefill_events(MEDIUM, handover="streaming", request_id="doomed"):
                node.pass_on(name, data)
                if name == "layer" and data["layer"] == 0:
                    self.service.kill_rank(1)
            self.assertEqual(name, "error", data)
            code, message = node.result()
        self.assertEqual(code, 1, message)
        self.assertIn("request 'doomed'", message)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
