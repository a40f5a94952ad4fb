#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefills outlive their clients: clients that retry, share a prefill, leave at random and lose their group."""
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
import unittest

from service import BIN_DIR, PATIENCE_S, InBackground, Service, ServiceTestCase, make_prompt, tokens_for, wait_until

LONG = make_prompt(tokens_for(8192), seed=31)
SHORTS = [make_prompt(tokens_for(1024), seed=seed) for seed in range(41, 45)]
LAYERS = 5  # of the fixture


class DisconnectTestCase(ServiceTestCase):
    GRID = {"tp": 1, "cp": 2}

    def setUp(self):
        self.service = Service(self.coordinator_options())
        self.addCleanup(self.service.close)

    def coordinator_options(self):
        return []

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def metric(self, *names):
        """The sum over all series of these names, or of those with the given labels, at one moment."""
        _, _, text = self.service.get("/metrics")
        return sum(float(value) for name in names for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M))

    def num_prefills(self):
        return self.metric('millrace_prefill_seconds_count{outcome="done"}')

    def post(self, prompt, **fields):
        return self.service.prefill(prompt, **{"cache": "both", **fields})

    def check(self, prompt, response):
        self.assertEqual(response["first_token_id"], prompt["answer_token_ids"][0])
        code, decoded = self.service.decode(response)
        self.assertEqual(code, 0, decoded)
        self.assertEqual(decoded["generated_token_ids"], prompt["answer_token_ids"])

    def seconds_of_one_prefill(self):
        """Of LONG, whose pages others do not find."""
        status, _, response = self.post(LONG, cache_salt="measured", lease_ms=1000)
        self.assertEqual(status, 200, response)
        return response["prefill_seconds"]

    def retry(self, prompt, deadline_ms, on_disconnect="finish", **fields):
        """Sends the prompt until it is answered. Returns the answer and the number of calls."""
        end = time.monotonic() + PATIENCE_S
        for call in range(1, 1000):
            assert time.monotonic() < end
            status, _, response = self.post(prompt, deadline_ms=deadline_ms, on_disconnect=on_disconnect, **fields)
            if status == 200:
                return response, call
            self.assertEqual(status, 504, response)
        raise AssertionError("no answer")


class RetryTest(DisconnectTestCase):
    def test_a_client_with_a_third_of_the_time_gets_its_answer_from_one_prefill(self):
        self.service.start_group(**self.GRID)
        deadline_ms = int(self.seconds_of_one_prefill() * 1000 / 3)
        before = self.num_prefills()
        response, calls = self.retry(LONG, deadline_ms)
        self.assertGreater(calls, 1)
        self.check(LONG, response)
        self.assertEqual(self.num_prefills() - before, 1)
        wasted = self.metric("millrace_prefill_wasted_token_layers_total")
        self.assertLessEqual(wasted, 0.1 * LAYERS * len(LONG["prompt_token_ids"]))

    def test_ten_such_clients_get_one_prefill(self):
        self.service.start_group(**self.GRID)
        deadline_ms = int(self.seconds_of_one_prefill() * 1000 / 3)
        before = self.num_prefills()
        posts = [InBackground(lambda: self.retry(LONG, deadline_ms)) for _ in range(10)]
        answers = [post.wait(2 * PATIENCE_S) for post in posts]
        for response, _ in answers:
            self.assertEqual(response["manifest"]["lease_id"], answers[0][0]["manifest"]["lease_id"])
            self.assertEqual(response["lease"]["state"], "active")
        self.check(LONG, answers[-1][0])
        self.assertEqual(self.num_prefills() - before, 1)
        self.assertEqual(self.metric("millrace_prefill_wasted_token_layers_total"), 0)
        # The cache goes with its last lease.
        for response, _ in answers:
            path = f"/v1/prefill/{response['request_id']}/lease:release"
            status, _, body = self.service.request("POST", path, {"lease_id": response["lease"]["lease_id"]})
            self.assertEqual(status, 200, body)
        wait_until("the end of all leases", lambda: self.metric("millrace_active_leases") == 0, PATIENCE_S)
        code, error = self.service.decode(answers[0][0])
        self.assertNotEqual(code, 0, error)

    def test_a_client_that_joins_a_streaming_hand_over_pulls_what_is_there(self):
        self.service.start_group(**self.GRID)
        first = self.service.prefill_events(LONG, cache="both", handover="streaming", request_id="first")
        self.assertEqual([next(first)[0] for _ in range(4)], ["queued", "started", "manifest", "layer"])
        events = list(self.service.prefill_events(LONG, cache="both", handover="streaming", request_id="second"))
        names = [name for name, _ in events]
        self.assertEqual(names, ["queued", "started", "manifest"] + ["layer"] * LAYERS + ["done"])
        self.assertTrue(events[-1][1]["joined"])
        self.check(LONG, events[-1][1])
        self.assertEqual(list(first)[-1][0], "done")
        self.assertEqual(self.num_prefills(), 1)


class SuspendTest(DisconnectTestCase):
    def coordinator_options(self):
        # What is suspended stays for longer than a test, and so does the result of a prompt that ends before its client has left.
        return ["--suspend-tokens", 2048, "--suspended-time", 3600, "--held-result-time", 3600]

    def leave_after_a_layer(self, prompt=LONG, request_id="left"):
        """Posts the prompt and closes the connection after its first layer. Returns the fields that it was sent with. A prompt that ends before this
        process gets to leave it is sent again, as one whose pages are not cached."""
        suspended = self.metric("millrace_suspended_requests")
        for attempt in range(20):
            sent = {"cache_salt": f"attempt-{attempt}"}
            held = self.metric("millrace_held_leases")
            events = self.service.prefill_events(prompt, cache="both", request_id=f"{request_id}-{attempt}", on_disconnect="suspend", **sent)
            self.assertEqual([next(events)[0] for _ in range(3)], ["queued", "started", "layer"])
            events.close()

            def is_left():
                return self.metric("millrace_suspended_requests") > suspended or self.metric("millrace_held_leases") > held
            wait_until("the prompt without its client", is_left, PATIENCE_S)
            if self.metric("millrace_suspended_requests") > suspended:
                return sent | {"request_id": f"{request_id}-{attempt}"}
            self.service.request("DELETE", f"/v1/prefill/{request_id}-{attempt}")
        raise AssertionError("every prompt ended before it was left")

    def test_a_client_with_a_third_of_the_time_gets_its_answer_from_one_prefill(self):
        self.service.start_group(**self.GRID)
        deadline_ms = int(self.seconds_of_one_prefill() * 1000 / 3)
        before = self.num_prefills()
        response, calls = self.retry(LONG, deadline_ms, on_disconnect="suspend")
        self.assertGreater(calls, 1)
        self.check(LONG, response)
        self.assertEqual(self.num_prefills() - before, 1)
        self.assertGreater(self.metric("millrace_prefill_resumed_total"), 0)
        wasted = self.metric("millrace_prefill_wasted_token_layers_total")
        self.assertLessEqual(wasted, 0.1 * LAYERS * len(LONG["prompt_token_ids"]))

    def test_others_are_served_while_a_prompt_is_suspended(self):
        self.service.start_group("--preempt-tokens", 512, **self.GRID)
        sent = self.leave_after_a_layer()
        for prompt in SHORTS[:2]:
            status, _, response = self.post(prompt)
            self.assertEqual(status, 200, response)
            self.check(prompt, response)
        self.assertEqual(self.metric("millrace_suspended_requests"), 1)
        status, _, response = self.post(LONG, **sent)
        self.assertEqual(status, 200, response)
        self.check(LONG, response)
        self.assertTrue(response["joined"])
        self.assertGreater(response["set_aside_seconds"], 0)
        self.assertEqual(self.metric("millrace_prefill_wasted_token_layers_total"), 0)

    def test_several_prompts_are_suspended_and_go_on_in_any_order(self):
        self.service.start_group(**self.GRID)
        prompts = [LONG, *(make_prompt(len(LONG["prompt_token_ids"]), seed=seed) for seed in (33, 34))]
        sent = [self.leave_after_a_layer(prompt, f"left-{number}") for number, prompt in enumerate(prompts)]
        self.assertEqual(self.metric("millrace_suspended_requests"), 3)
        for number in 1, 0, 2:
            status, _, response = self.post(prompts[number], **sent[number])
            self.assertEqual((status, response["joined"]), (200, True), response)
            self.check(prompts[number], response)
        self.assertEqual(self.metric("millrace_prefill_resumed_total"), 3)
        self.assertEqual(self.metric('millrace_prefill_wasted_token_layers_total{reason="exhausted"}'), 0)

    def test_a_suspended_prompt_gives_way_to_one_without_room(self):
        tokens = len(LONG["prompt_token_ids"])
        # Room for one such prompt and a half: a page of one of the fixture's 2 kv heads has K and V of 64 tokens, 128 float32 each.
        room_bytes = tokens // 64 * LAYERS * 2 * (64 * 2 * 128 * 4) // self.GRID["cp"] * 3 // 2
        self.service.start_group("--dtype", "float32", "--device-pool", "1MiB", "--host-pool", room_bytes, **self.GRID)
        self.leave_after_a_layer()
        other = make_prompt(tokens, seed=32)
        status, _, response = self.post(other)
        self.assertEqual(status, 200, response)
        self.check(other, response)
        self.assertEqual(self.metric("millrace_suspended_requests"), 0)
        self.assertGreater(self.metric("millrace_prefill_wasted_token_layers_total"), 0)

    def test_the_loss_of_the_group_while_a_prompt_is_suspended(self):
        self.service.start_group(**self.GRID)
        sent = self.leave_after_a_layer()
        self.service.kill_rank(1)
        wait_until("the loss of the prompt", lambda: self.metric("millrace_suspended_requests") == 0, PATIENCE_S)
        wait_until("the end of the broken group", lambda: not self.service.ranks(), 30)
        self.service.start_group(**self.GRID)
        status, _, response = self.post(LONG, **sent)
        self.assertEqual(status, 200, response)
        self.assertFalse(response["joined"])
        self.check(LONG, response)

    def test_delete_frees_a_suspended_prompt(self):
        self.service.start_group(**self.GRID)
        sent = self.leave_after_a_layer()
        self.service.request("DELETE", f"/v1/prefill/{sent['request_id']}")
        self.assertEqual(self.metric("millrace_running_requests"), 0)
        wait_until("no suspended prompt", lambda: self.metric("millrace_suspended_requests") == 0, PATIENCE_S)
        # Nothing keeps pages but the prefix cache.
        wait_until("pages of nobody", lambda: self.metric("millrace_kv_pool_used_bytes") == 0, PATIENCE_S)


class CommandLineTest(DisconnectTestCase):
    def coordinator_options(self):
        # Suspending is the default; what is suspended stays for longer than this test.
        return ["--suspend-tokens", 2048, "--suspended-time", 3600]

    def kill_client_after_a_layer(self, request_id, on_disconnect):
        path = os.path.join(self.service.directory.name, "prompt.json")
        with open(path, "w") as file:
            json.dump(LONG["prompt_token_ids"], file)
        client = subprocess.Popen(
            [os.path.join(BIN_DIR, "millrace-client"), "--server", f"127.0.0.1:{self.service.http_port}", "prefill", "--prompt", path, "--model",
             "fixture", "--request-id", request_id, "--on-disconnect", on_disconnect], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(client.wait)
        self.addCleanup(client.kill)
        self.service.wait_for_layers(request_id)
        client.kill()

    def test_a_client_that_is_killed_leaves_its_prefill_as_it_said(self):
        self.service.start_group(**self.GRID)
        self.kill_client_after_a_layer("unwanted", "cancel")
        wait_until("the end of the prefill", lambda: self.metric("millrace_running_requests") == 0, PATIENCE_S)
        self.assertEqual(self.num_prefills(), 0)
        self.kill_client_after_a_layer("wanted", "finish")
        wait_until("the result", lambda: self.num_prefills() == 1, PATIENCE_S)
        wait_until("its lease", lambda: self.metric("millrace_held_leases") == 1, PATIENCE_S)
        status, _, response = self.post(LONG)
        self.assertEqual(status, 200, response)
        self.assertTrue(response["joined"])
        self.check(LONG, response)


class TroubleTest(DisconnectTestCase):
    ACTIONS = 200
    MAX_UNATTENDED = 3

    def coordinator_options(self):
        return ["--max-unattended", self.MAX_UNATTENDED, "--held-result-time", 2, "--suspended-time", 2, "--suspend-tokens", 256]

    def leave_after(self, prompt, seconds, **fields):
        """Posts the prompt and closes the connection after a while. Returns the answer, if it came before."""
        connection = self.service.connection(seconds)
        with contextlib.closing(connection), contextlib.suppress(socket.timeout, ConnectionError):
            connection.request("POST", "/v1/prefill", json.dumps(self.service.prefill_body(prompt, cache="both", **fields)),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        return None

    def kill(self, group):
        for pid in [group.pid, *self.service.ranks().values()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        group.wait(20)
        wait_until("the end of the ranks", lambda: not self.service.ranks(), 30)

    def test_random_disconnects_returns_and_kills_leave_nothing_wrong_and_nothing_behind(self):
        group = self.service.start_group(**self.GRID)
        answered, over = [], []
        lock = threading.Lock()

        def client(seed, count):
            own = random.Random(seed)
            for number in range(count):
                prompt = own.choice(SHORTS)
                fields = {"lease_ms": own.choice([200, 2000]), "on_disconnect": own.choice(["cancel", "finish", "suspend"]),
                          "request_id": f"r{seed}-{own.randrange(6)}", "deadline_ms": own.choice([100, 1000, 60000])}
                answer = self.leave_after(prompt, own.choice([0.05, 0.2, 0.5, 5]), **fields)
                if own.random() < 0.1:
                    self.service.request("DELETE", f"/v1/prefill/{fields['request_id']}")
                with lock:
                    if answer and answer[0] == 200 and answer[1]["first_token_id"] != prompt["answer_token_ids"][0]:
                        over.append(f"wrong: {seed} {number}: {answer[1]}")
                    answered.append(answer and answer[0])
                    unattended = self.metric(*(f"millrace_{what}" for what in ("unattended_requests", "suspended_requests", "held_leases")))
                    if unattended > self.MAX_UNATTENDED:
                        over.append(f"{unattended} unattended")

        clients = [InBackground(lambda seed=seed: client(seed, self.ACTIONS // 4)) for seed in range(4)]
        for kill_at in (self.ACTIONS // 3, 2 * self.ACTIONS // 3):
            wait_until(f"{kill_at} calls", lambda: len(answered) >= kill_at or all(c.ended_at for c in clients), 3 * PATIENCE_S)
            self.kill(group)
            group = self.service.start_group(**self.GRID)
        for one in clients:
            one.wait(3 * PATIENCE_S)
        self.assertEqual(over, [])
        self.assertGreater(answered.count(200), self.ACTIONS // 20)
        self.assertGreater(self.metric("millrace_prefill_joined_total"), 0)
        for name in ("millrace_unattended_requests", "millrace_suspended_requests", "millrace_held_leases", "millrace_queued_requests",
                     "millrace_running_requests", "millrace_active_leases"):
            wait_until(f"no {name}", lambda name=name: self.metric(name) == 0, PATIENCE_S)
        # What the leases held is free: all that is used are pages that prompts may begin with.
        def is_free():
            return self.metric("millrace_kv_pool_used_bytes") <= self.metric("millrace_prefix_cache_bytes")
        wait_until("pages without a lease", is_free, PATIENCE_S)
        status, _, response = self.post(LONG)
        self.assertEqual(status, 200, response)
        self.check(LONG, response)


if __name__ == "__main__":
    unittest.main(verbosity=2)
