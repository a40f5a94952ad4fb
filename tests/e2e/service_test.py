#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The real processes together: a coordinator, a group of two ranks under mpirun, decode nodes."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from service import NOTICED_S, PATIENCE_S, InBackground, Service, ServiceTestCase, free_ports, make_prompt, tokens_for, wait_until

SHORT = make_prompt(1024, seed=1)
# Long enough for a test to act in the middle of it, and to break something without haste.
MEDIUM = make_prompt(tokens_for(4096), seed=2)
# Also with sanitizers so much longer than SHORT that SHORT may run between its layers.
LONG = make_prompt(max(tokens_for(8192), 4096), seed=3)
NUM_LAYERS = 5


class DecodeTestCase(ServiceTestCase):
    def check_decoded(self, transport, *options):
        """Prefills, pulls over this transport only, and generates."""
        status, _, response = self.service.prefill(SHORT)
        self.assertEqual(status, 200, response)
        self.assertEqual(response["num_tokens"], 1024)
        self.assertEqual(response["first_token_id"], SHORT["answer_token_ids"][0])
        code, decoded = self.service.decode(response, "--transport", transport, *options)
        self.assertEqual(code, 0, decoded)
        self.assertEqual(decoded["generated_token_ids"], SHORT["answer_token_ids"])
        self.assertEqual(decoded["pulled_pages"], 16 * 5 * 2)  # of the prompt, layers, kv heads
        self.assertEqual(decoded["bytes_by_transport"], {transport: decoded["pulled_bytes"]})
        self.assertEqual(decoded["corrupt_pages"], 0)


class KvTransportTest(DecodeTestCase):
    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def test_a_group_with_ucx_serves_over_its_transports(self):
        self.service.start_group("--kv-transport", "ucx")
        for transport in "shm", "tcp":
            with self.subTest(transport=transport):
                self.check_decoded(transport)

    @unittest.skipUnless(shutil.which("openssl"), "no openssl command")
    def test_caches_are_encrypted_and_decode_nodes_are_known_by_their_certificates(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        certificate, key = os.path.join(folder.name, "kv.pem"), os.path.join(folder.name, "kv.key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=kv",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-keyout", key, "-out", certificate], check=True,
                       capture_output=True)
        # The certificate is self-signed, so it also serves as the CA, and for the decode node.
        self.service.start_group("--kv-tls-cert", certificate, "--kv-tls-key", key, "--kv-tls-ca", certificate)
        self.check_decoded("tcp", "--kv-tls-ca", certificate, "--kv-tls-cert", certificate, "--kv-tls-key", key)
        _, _, response = self.service.prefill(SHORT)
        self.assertTrue(all(shard["address"].startswith("tls://127.0.0.1:") for shard in response["manifest"]["shards"]))
        for options in ("--kv-tls-ca", certificate), ():
            code, message = self.service.decode(response, "--transport", "tcp", *options)
            self.assertEqual(code, 1, message)


class ServingTest(DecodeTestCase):
    """One service for all tests; none of them leaves it changed."""

    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.kv_port = free_ports(2)
        cls.service.start_group("--kv-port", str(cls.kv_port))

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def wait_for_sample(self, metric, at_least):
        """Waits for a sample of the group. `metric` is its name and labels; samples come with heartbeats."""
        def reached():
            _, _, text = self.service.get("/metrics")
            found = re.search(rf'^{metric}[^}}]*\}} (\S+)$', text, re.M)
            return found and float(found[1]) >= at_least
        wait_until(f"{metric} of {at_least}", reached, 20)

    def test_answer_is_right_at_each_decode_degree(self):
        for tp in "1", "2":
            with self.subTest(tp=tp):
                self.check_decoded("tcp", "--tp", tp)

    def test_stream_tells_every_layer_in_order(self):
        events = list(self.service.prefill_events(SHORT))
        self.assertEqual([name for name, _ in events], ["queued", "started"] + ["layer"] * 5 + ["done"])
        self.assertEqual([data["layer"] for name, data in events if name == "layer"], list(range(5)))
        done = events[-1][1]
        self.assertEqual(done["first_token_id"], SHORT["answer_token_ids"][0])
        code, decoded = self.service.decode(done)
        self.assertEqual(code, 0, decoded)
        self.assertEqual(decoded["generated_token_ids"], SHORT["answer_token_ids"])

    def test_a_short_prompt_runs_between_two_layers_of_a_long_one(self):
        events = self.service.prefill_events(LONG)
        names = [next(events)[0], next(events)[0], next(events)[0]]
        self.assertEqual(names, ["queued", "started", "layer"])
        status, _, short = self.service.prefill(SHORT)
        self.assertEqual(status, 200, short)
        self.check_answer(short, SHORT)
        done = list(events)[-1][1]
        self.check_answer(done, LONG)
        self.assertGreater(done["set_aside_seconds"], 0)
        self.assertEqual(short["set_aside_seconds"], 0)

    def check_answer(self, response, prompt):
        code, decoded = self.service.decode(response)
        self.assertEqual(code, 0, decoded)
        self.assertEqual(decoded["generated_token_ids"], prompt["answer_token_ids"])

    def test_released_cache_is_refused_to_decode_nodes(self):
        _, _, response = self.service.prefill(SHORT)
        manifest = response["manifest"]
        path = f"/v1/prefill/{manifest['request_id']}"
        status, _, body = self.service.request("POST", f"{path}/lease:renew", {"lease_id": "stolen", "lease_ms": 1000})
        self.assertEqual(status, 404, body)
        status, _, body = self.service.request("POST", f"{path}/lease:release", {"lease_id": manifest["lease_id"]})
        self.assertEqual(status, 200, body)
        code, message = self.service.decode(response)
        self.assertEqual(code, 1)
        self.assertIn("knows no such lease", message)

    def test_plan_that_names_a_file_is_refused(self):
        status, _, body = self.service.prefill(SHORT, head_plan="/etc/passwd")
        self.assertEqual(status, 400, body)
        self.assertIn("expected one of", body["error"]["message"])

    def test_deadline_that_passes_is_an_error_and_the_group_goes_on(self):
        status, _, body = self.service.prefill(MEDIUM, deadline_ms=1)
        self.assertEqual(status, 504, body)
        self.assertEqual(self.service.prefill(SHORT)[0], 200)

    def test_the_end_of_a_request_is_one_line_of_the_log_whatever_the_client_wrote(self):
        self.service.prefill(SHORT, request_id="right")
        self.service.prefill(SHORT, request_id="wrong", head_plan="zigzag\nforged: line")
        self.service.wait_for_log(r"^\S+Z info worker/0: request right: 1024 tokens, done in \d+\.\d\d s, density 1\.000$")
        self.service.wait_for_log(r"^\S+Z info coordinator: request right: 1024 tokens, done on group 'group-0': queue .* density 1\.000$")
        self.service.wait_for_log(r"^\S+Z info coordinator: request req-\w+: refused, invalid_argument: .*zigzag\\nforged: line")

    def test_delete_cancels_at_the_next_layer(self):
        post = InBackground(lambda: self.service.prefill(MEDIUM, request_id="unwanted"))
        self.service.wait_for_layers("unwanted")
        status, _, body = self.service.request("DELETE", "/v1/prefill/unwanted")
        self.assertEqual(status, 200, body)
        status, _, body = post.wait(30)
        self.assertEqual((status, body["error"]["type"]), (499, "cancelled"))
        self.assertEqual(self.service.prefill(SHORT)[0], 200)

    def test_metrics_hold_the_samples_of_all_ranks(self):
        status, _, response = self.service.prefill(SHORT)
        self.assertEqual(status, 200, response)
        self.wait_for_sample(r'millrace_kv_pages_written_total\{group="group-0"', at_least=160)

    def test_metrics_tell_over_what_the_cache_was_sent(self):
        _, _, response = self.service.prefill(SHORT)
        code, decoded = self.service.decode(response, "--transport", "tcp")
        self.assertEqual(code, 0, decoded)
        self.wait_for_sample(r'millrace_kv_bytes_sent_total\{group="group-0",transport="tcp"',
                             at_least=decoded["pulled_bytes"])

    def test_ranks_serve_their_pages_at_the_ports_asked_for(self):
        _, _, response = self.service.prefill(SHORT)
        self.assertEqual([shard["address"] for shard in response["manifest"]["shards"]],
                         [f"tcp://127.0.0.1:{self.kv_port}", f"tcp://127.0.0.1:{self.kv_port + 1}"])


class TroubleTest(ServiceTestCase):
    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)
        self.group = self.service.start_group()

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def expect_a_new_group_serves(self, request_id):
        self.assertEqual(self.service.get("/health")[0], 200)
        wait_until("the end of the broken group", lambda: not self.service.ranks(), 30)
        self.service.start_group()
        status, _, body = self.service.prefill(SHORT, request_id=request_id)
        self.assertEqual(status, 200, body)
        self.assertEqual(body["first_token_id"], SHORT["answer_token_ids"][0])

    def kill_rank_during_a_request(self, rank, layers_done):
        post = InBackground(lambda: self.service.prefill(LONG, request_id="doomed"))
        self.service.wait_for_layers("doomed", layers_done)
        self.kill_rank_and_expect_an_error(rank, post, "doomed")

    def kill_rank_and_expect_an_error(self, rank, post, request_id):
        self.service.kill_rank(rank)
        killed_at = time.monotonic()
        status, headers, body = post.wait(PATIENCE_S)
        self.assertEqual(status, 503, body)
        self.assertTrue(body["error"]["retriable"])
        self.assertIn("Retry-After", headers)
        self.assertLess(post.ended_at - killed_at, NOTICED_S)
        self.expect_a_new_group_serves(request_id)

    def test_killed_rank_0_costs_its_request_a_retriable_error(self):
        self.kill_rank_during_a_request(0, layers_done=1)

    def test_killed_rank_1_costs_its_request_a_retriable_error(self):
        self.kill_rank_during_a_request(1, layers_done=1)

    def test_rank_killed_before_the_first_layer_is_done_costs_no_more(self):
        self.kill_rank_during_a_request(1, layers_done=0)

    def test_rank_killed_in_the_last_layer_costs_no_more(self):
        # The last layer, which computes only the last rows, is soon over, so the rank is stopped in it first.
        request_id, post = self.service.hold_in_layer(1, MEDIUM, layers_done=NUM_LAYERS - 1)
        self.kill_rank_and_expect_an_error(1, post, request_id)

    def test_idle_group_that_loses_a_rank_takes_its_caches_along(self):
        _, _, response = self.service.prefill(SHORT, request_id="lost")
        self.service.kill_rank(1)
        wait_until("the loss of the group", lambda: self.service.get("/ready")[0] == 503, NOTICED_S)
        status, headers, body = self.service.prefill(SHORT)
        self.assertEqual(status, 503, body)
        self.assertIn("Retry-After", headers)
        wait_until("the end of the broken group", lambda: not self.service.ranks(), 30)
        code, message = self.service.decode(response)
        self.assertEqual(code, 1, message)
        self.expect_a_new_group_serves("lost")

    def test_sigterm_of_the_coordinator_finishes_what_runs(self):
        post = InBackground(lambda: self.service.prefill(MEDIUM, request_id="last"))
        self.service.wait_for_layers("last")
        self.service.coordinator.send_signal(signal.SIGTERM)
        status, _, body = post.wait(PATIENCE_S)
        self.assertEqual(status, 200, body)
        self.assertEqual(self.service.coordinator.wait(30), 0)

    def expect_drain_after(self, send_signal):
        post = InBackground(lambda: self.service.prefill(MEDIUM, request_id="last"))
        self.service.wait_for_layers("last")
        send_signal()
        status, _, body = post.wait(PATIENCE_S)
        self.assertEqual(status, 200, body)
        wait_until("the end of all ranks", lambda: not self.service.ranks(), 20)
        self.assertEqual(self.group.wait(20), 0)
        status, headers, body = self.service.prefill(SHORT)
        self.assertEqual(status, 503, body)
        self.assertIn("Retry-After", headers)

    def test_sigusr1_of_mpirun_drains_the_group(self):
        self.expect_drain_after(lambda: self.group.send_signal(signal.SIGUSR1))

    def test_sigterm_of_rank_0_drains_the_group(self):
        self.expect_drain_after(lambda: os.kill(self.service.ranks()[0], signal.SIGTERM))

    def test_sigterm_of_mpirun_drains_the_group(self):
        self.group.send_signal(signal.SIGTERM)
        wait_until("the end of all ranks", lambda: not self.service.ranks(), 20)
        self.service.wait_for_log("draining: 0 leases")


class HeldUpTest(ServiceTestCase):
    """Imitates with SIGSTOP and SIGCONT what a busy machine does to a process."""

    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start_group()

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def test_a_group_that_is_late_keeps_its_request(self):
        post = InBackground(lambda: self.service.prefill(MEDIUM, request_id="late"))
        self.service.wait_for_layers("late")
        rank = self.service.ranks()[0]
        os.kill(rank, signal.SIGSTOP)
        # Eight heartbeats of at least 8 bytes: two seconds in which the group itself sends nothing.
        wait_until("unread heartbeats", lambda: self.service.unread_by_groups() >= 64, 60)
        os.kill(rank, signal.SIGCONT)
        status, _, body = post.wait(PATIENCE_S)
        self.assertEqual(status, 200, body)
        self.assertIn("millrace_groups_lost_total 0", self.service.get("/metrics")[2])

    def test_what_ucx_says_is_no_part_of_a_result(self):
        status, _, response = self.service.prefill(SHORT)
        self.assertEqual(status, 200, response)
        code, decoded = self.service.decode(response, UCX_NET_DEVICES="nosuch0,all", UCX_LOG_LEVEL="info")
        self.assertEqual(code, 0, decoded)
        self.assertEqual(decoded["generated_token_ids"], SHORT["answer_token_ids"])


class CoordinatorRestartTest(ServiceTestCase):
    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.start_group()

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def test_leases_are_known_again_after_a_crash_of_the_coordinator(self):
        status, _, before = self.service.prefill(SHORT, request_id="kept")
        self.assertEqual(status, 200, before)
        self.service.restart_coordinator()
        wait_until("the group's return", lambda: self.service.get("/v1/prefill/kept")[0] == 200, 60)
        after = self.service.get("/v1/prefill/kept")[2]
        instances = [answer["manifest"].pop("coordinator_instance") for answer in (before, after)]
        self.assertNotEqual(*instances)
        self.assertEqual(after["manifest"], before["manifest"])
        self.assertEqual(after["lease"]["state"], "active")
        lease_id = before["manifest"]["lease_id"]
        status, _, renewed = self.service.request("POST", "/v1/prefill/kept/lease:renew", {"lease_id": lease_id, "lease_ms": 90000})
        self.assertEqual(status, 200, renewed)
        self.assertGreater(renewed["lease"]["expires_in_ms"], 60000)
        code, decoded = self.service.decode(after)
        self.assertEqual(code, 0, decoded)
        self.assertEqual(decoded["generated_token_ids"], SHORT["answer_token_ids"])
        status, _, released = self.service.request("POST", "/v1/prefill/kept/lease:release", {"lease_id": lease_id})
        self.assertEqual(status, 200, released)
        wait_until("the end of the cache", lambda: self.service.decode(after)[0] == 1, 60)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
