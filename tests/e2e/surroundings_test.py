#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What surrounds a coordinator and its ranks: logs that nobody reads, hang-ups, few descriptors, IPv6, a stop, killed batch jobs."""
import contextlib
import glob
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from service import BIN_DIR, MODEL_DIR, PATIENCE_S, Service, ServiceTestCase, make_prompt, wait_until

SHORT = make_prompt(256, seed=1)


class Coordinator:
    """A coordinator alone, whose log the test chooses."""

    def __init__(self, log, *options, host="127.0.0.1", before=None):
        self.host = host
        self.folder = tempfile.TemporaryDirectory(prefix="millrace-e2e-")
        ports = os.path.join(self.folder.name, "ports.json")
        self.process = subprocess.Popen([os.path.join(BIN_DIR, "millrace-coordinator"), "--host", host, "--http-port", "0", "--group-port", "0",
                                         "--port-file", ports, *options], stdin=subprocess.DEVNULL, stderr=log, preexec_fn=before)
        wait_until("the coordinator's ports", lambda: os.path.exists(ports), PATIENCE_S)
        with open(ports) as file:
            self.port = json.load(file)["http_port"]

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def metric(self, name):
        return next(float(line.split()[1]) for line in self.ask("GET", "/metrics")[1].splitlines() if line.startswith(name + " "))

    def close(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class LogTest(unittest.TestCase):
    # Refused at once, with a line of more than 1000 bytes.
    BODY = json.dumps({"model": "x" * 250, "prompt_token_ids": [1]})

    def start(self, log, *options, **more):
        coordinator = Coordinator(log, *options, **more)
        self.addCleanup(coordinator.close)
        return coordinator

    def test_a_log_that_nobody_reads_holds_nothing_up_and_is_read_later(self):
        reader, writer = os.pipe()
        # Otherwise a pipe takes 64 KiB.
        filled = 1 << 16
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writer, b"#" * 4096):
                filled += 4096
        os.set_blocking(writer, True)
        coordinator = self.start(writer)
        os.close(writer)
        for _ in range(100):
            self.assertEqual(coordinator.ask("POST", "/v1/prefill", self.BODY)[0], 503)
        self.assertEqual(coordinator.ask("GET", "/health")[0], 200)
        coordinator.process.send_signal(signal.SIGTERM)
        text = b""
        while piece := os.read(reader, 1 << 16):
            text += piece
        os.close(reader)
        self.assertIn(b"stopped", text)
        self.assertEqual(coordinator.process.wait(PATIENCE_S), 0)

    def test_a_stop_does_not_wait_for_a_log_that_nobody_reads(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writer, b"#" * 4096):
                pass
        os.set_blocking(writer, True)
        coordinator = self.start(writer)
        os.close(writer)
        coordinator.process.send_signal(signal.SIGTERM)
        self.assertEqual(coordinator.process.wait(PATIENCE_S), 0)

    def test_a_log_whose_reader_has_ended_costs_its_lines_only(self):
        reader, writer = os.pipe()
        coordinator = self.start(writer)
        os.close(writer)
        os.close(reader)
        for _ in range(10):
            self.assertEqual(coordinator.ask("POST", "/v1/prefill", self.BODY)[0], 503)
        wait_until("lines that were left out", lambda: coordinator.metric("millrace_log_lines_left_out_total") > 0, PATIENCE_S)
        self.assertIsNone(coordinator.process.poll())

    def test_programs_whose_output_nobody_reads_do_not_die_of_a_signal(self):
        for program in "millrace-client", "millrace-decode", "millrace-batch", "millrace-calibrate", "millrace-worker", "millrace-coordinator":
            with self.subTest(program=program):
                reader, writer = os.pipe()
                os.close(reader)
                done = subprocess.run([os.path.join(BIN_DIR, program), "--no-such-option"], stdout=writer, stderr=writer, timeout=PATIENCE_S)
                os.close(writer)
                self.assertGreaterEqual(done.returncode, 0)

    def test_a_hang_up_ends_no_coordinator(self):
        coordinator = self.start(subprocess.DEVNULL)
        for _ in range(3):
            coordinator.process.send_signal(signal.SIGHUP)
            self.assertEqual(coordinator.ask("GET", "/health")[0], 200)
        coordinator.process.send_signal(signal.SIGTERM)
        self.assertEqual(coordinator.process.wait(PATIENCE_S), 0)

    def test_probes_are_answered_under_a_hard_limit_of_descriptors(self):
        for limit in 128, 256:
            with self.subTest(limit=limit), tempfile.TemporaryFile() as log:
                coordinator = self.start(log, before=lambda limit=limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
                with contextlib.ExitStack() as held:
                    for _ in range(2 * limit):
                        held.enter_context(socket.create_connection(("127.0.0.1", coordinator.port), PATIENCE_S))
                    for _ in range(20):
                        self.assertEqual(coordinator.ask("GET", "/health")[0], 200)
                coordinator.close()
                log.seek(0)
                lines = log.read().decode().splitlines()
                self.assertIn(f"the limit of {limit} open files is too low for --max-connections 1024", "\n".join(lines))
                self.assertLess(len(lines), 20)

    def test_the_soft_limit_of_descriptors_is_raised_to_the_hard_one(self):
        with tempfile.TemporaryFile() as log:
            coordinator = self.start(log, before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512)))
            self.assertEqual(resource.prlimit(coordinator.process.pid, resource.RLIMIT_NOFILE), (512, 512))
            coordinator.close()

    def test_the_log_shows_no_text_that_turns_it_around(self):
        with tempfile.TemporaryFile() as log:
            coordinator = self.start(log)
            coordinator.ask("POST", "/v1/prefill", json.dumps({"model": "a\u202eb", "prompt_token_ids": [1]}))
            coordinator.process.send_signal(signal.SIGTERM)
            coordinator.process.wait(PATIENCE_S)
            log.seek(0)
            text = log.read().decode()
        self.assertNotIn("\u202e", text)
        self.assertIn("refused", text)


def has_ipv6():
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


class RankTest(ServiceTestCase):
    def setUp(self):
        # What the processes of the service start with.
        _, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.hard = hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        self.service = Service()
        self.addCleanup(self.service.close)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def test_the_soft_limit_of_descriptors_is_raised_to_the_hard_one(self):
        self.service.start_group(tp=2)
        limits = [resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in self.service.ranks().values()]
        self.assertEqual(limits, 2 * [(self.hard, self.hard)])


@unittest.skipUnless(has_ipv6(), "no ::1")
class Ipv6Test(ServiceTestCase):
    def setUp(self):
        class OverIpv6(Service):
            address = "::1"
            coordinator_name = "[::1]"
        self.service = OverIpv6()
        self.addCleanup(self.service.close)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def test_brackets_are_taken_everywhere(self):
        self.service.start_group("--kv-host", "[::1]", tp=1)
        server = f"[::1]:{self.service.http_port}"
        prompt = os.path.join(self.service.directory.name, "prompt.json")
        with open(prompt, "w") as file:
            json.dump(SHORT["prompt_token_ids"], file)
        status, _, response = self.service.prefill(SHORT)
        self.assertEqual(status, 200, response)
        code, decoded = self.service.decode(response, "--transport", "tcp")
        self.assertEqual(code, 0, decoded)
        self.assertEqual(decoded["generated_token_ids"], SHORT["answer_token_ids"][:4])
        done = subprocess.run([os.path.join(BIN_DIR, "millrace-client"), "--server", server, "wait-ready"], capture_output=True, text=True,
                              timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.service.wait_for_log(re.escape(f"HTTP on {server}, groups on [::1]:"))


class StoppedCoordinatorTest(ServiceTestCase):
    def setUp(self):
        self.service = Service(["--group-patience", "1"])
        self.addCleanup(self.service.close)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def test_a_stop_costs_no_request_and_is_one_loss_at_most(self):
        self.service.start_group(tp=1)
        log = os.path.join(self.service.directory.name, "ranks.log")

        def tries():
            with open(log, errors="replace") as file:
                return file.read().count("retrying in")
        before = tries()
        self.service.coordinator.send_signal(signal.SIGSTOP)
        # The group has given up waiting and comes again, time after time.
        wait_until("tries of the group", lambda: tries() >= before + 3, PATIENCE_S)
        connection = self.service.connection(PATIENCE_S)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/prefill", json.dumps(self.service.prefill_body(SHORT)), {"Content-Type": "application/json"})
        self.service.coordinator.send_signal(signal.SIGCONT)
        response = connection.getresponse()
        body = response.read()
        # Unless it came while no group was there, in which case it was refused at once.
        if response.status != 200:
            self.assertIn(b"no worker group", body)
        wait_until("the group", self.service.ready, PATIENCE_S)
        self.assertRegex(self.service.get("/metrics")[2], r"(?m)^millrace_groups_lost_total [01]$")


class BatchLeftoversTest(unittest.TestCase):
    def test_the_next_job_removes_what_a_killed_one_left(self):
        with tempfile.TemporaryDirectory(prefix="millrace-e2e-") as folder, \
                tempfile.TemporaryDirectory(prefix="millrace-e2e-", dir="/dev/shm") as segments:
            sessions = os.path.join(folder, "sessions")
            os.mkdir(sessions)
            pipe = os.path.join(folder, "prompts")
            os.mkfifo(pipe)

            def job(number, input_path):
                root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
                return subprocess.Popen(["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", "2", "--mca", "pml", "ob1", "--mca", "btl",
                                         "self,vader", "--mca", "btl_vader_backing_directory", segments, "--mca", "orte_tmpdir_base", sessions,
                                         os.path.join(BIN_DIR, "millrace-batch"), "--model", MODEL_DIR, "--tp", "2", "--threads", "1",
                                         "--crossover-tokens", "0", "--dtype", "float32", "--input", input_path, "--output",
                                         os.path.join(folder, f"out{number}")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)

            def files():
                return {path for root in (sessions, segments) for path in glob.glob(root + "/**", recursive=True) if os.path.isfile(path)}
            killed = job(1, pipe)  # waits for its first prompt
            wait_until("the job's segments", lambda: len(os.listdir(segments)) >= 2 and
                       os.path.exists(os.path.join(folder, "out1", "results.jsonl")), PATIENCE_S)
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait()
            left = files()
            self.assertTrue(left)
            prompts = os.path.join(folder, "prompts.jsonl")
            with open(prompts, "w") as file:
                file.write(json.dumps({**SHORT, "id": "a"}) + "\n")
            # Its ranks may live a little longer than mpirun did.
            wait_until("the removal of what the killed job left", lambda: job(2, prompts).wait(PATIENCE_S) is not None and not left & files(),
                       PATIENCE_S)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
