#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What programs refuse at start, with which exit status, and what they do to existing files."""
import json
import os
import subprocess
import tempfile
import unittest

from service import BIN_DIR, MODEL_DIR, PATIENCE_S, make_prompt


def run(program, *options, ranks=1, **environment):
    """Exit status and output."""
    command = [os.path.join(BIN_DIR, program), "--model", MODEL_DIR, "--crossover-tokens", "0", "--threads", "1", *options]
    if ranks > 1:
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp",
                   "-n", str(ranks), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


class BatchTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="millrace-e2e-")
        self.addCleanup(directory.cleanup)
        self.input = os.path.join(directory.name, "prompts.jsonl")
        self.output = os.path.join(directory.name, "out")
        self.results = os.path.join(self.output, "results.jsonl")
        with open(self.input, "w") as file:
            for i in range(2):
                file.write(json.dumps({**make_prompt(256, seed=i), "id": f"p{i}"}) + "\n")

    def batch(self, *options, input_path=None, **more):
        return run("millrace-batch", "--input", input_path or self.input, "--output", self.output, *options, **more)

    def test_a_plan_that_is_none_ends_the_job_before_its_first_prompt(self):
        for plan in "bogus", "/nonexistent.json":
            with self.subTest(plan=plan):
                status, said = self.batch("--head-plan", plan, "--tp", "2", ranks=2)
                self.assertEqual(status, 2, said)
                self.assertIn(plan, said)
                self.assertFalse(os.path.exists(self.results))

    def test_a_job_whose_input_cannot_be_read_ends_with_2(self):
        for path in os.path.dirname(self.input), "/nonexistent.jsonl", "/proc/self/mem":
            with self.subTest(path=path):
                status, said = self.batch(input_path=path)
                self.assertEqual(status, 2, said)
                self.assertIn(path, said)

    def test_results_are_resumed_or_left_alone(self):
        self.assertEqual(self.batch()[0], 0)
        with open(self.results) as file:
            first = file.read()
        for path in self.input, self.results:
            status, said = self.batch(input_path=path)
            self.assertEqual(status, 2, said)
        with open(self.input, "a") as file:
            file.write(json.dumps({**make_prompt(256, seed=2), "id": "p2"}) + "\n")
        status, said = self.batch("--resume")
        self.assertEqual(status, 0, said)
        self.assertIn("1 prompts done, 0 failed", said)
        self.assertIn("2 done by an earlier job", said)
        with open(self.results) as file:
            self.assertTrue((second := file.read()).startswith(first))
        self.assertEqual(json.loads(second[len(first):])["id"], "p2")

    def test_a_wrong_command_line_is_2(self):
        for options in ["--no-such"], ["--threads", "-1"], ["--layer-timeout-s", "0"], ["--kv", "maybe"]:
            with self.subTest(options=options):
                self.assertEqual(self.batch(*options)[0], 2)

    def test_a_timeout_may_have_parts_of_a_second(self):
        self.assertEqual(self.batch("--layer-timeout-s", "20.5")[0], 0)

    def test_a_log_level_that_is_none_is_said_and_loses_no_errors(self):
        _, said = self.batch("--head-plan", "bogus", MILLRACE_LOG="verbose")
        self.assertIn("MILLRACE_LOG: unknown level 'verbose'; expected one of", said)
        self.assertRegex(said, r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z error batch/0: .*bogus")


class WorkerTest(unittest.TestCase):
    """No coordinator listens, so a worker that got as far as registering would keep running."""

    def expect_refused(self, options, words, ranks=1):
        status, said = run("millrace-worker", "--coordinator", "127.0.0.1:1", *options, ranks=ranks)
        self.assertEqual(status, 2, said)
        self.assertIn(words, said)

    def test_a_plan_that_is_none_is_refused_at_start(self):
        self.expect_refused(["--head-plan", "bogus", "--cp", "2"], "bogus", ranks=2)
        self.expect_refused(["--head-plan", "/nonexistent.json"], "/nonexistent.json")

    def test_pools_without_room_for_a_prompt_are_refused_at_start(self):
        self.expect_refused(["--device-pool", "0", "--host-pool", "1KiB"], "the pools hold 0 pages of")

    def test_a_host_pool_larger_than_the_free_memory_is_refused_at_start(self):
        self.expect_refused(["--host-pool", "1024TiB", "--tp", "2"], "for each of 2 ranks", ranks=2)

    def test_ranks_that_store_nothing_take_no_pools(self):
        with tempfile.TemporaryDirectory() as directory:
            # The model has two kv heads.
            self.expect_refused(["--tp", "4", "--host-pool", "1024TiB", "--disk-pool", "1MiB", "--disk-directory", directory],
                                "for each of 2 ranks", ranks=4)
            self.assertEqual(sorted(os.listdir(directory)), ["rank-0", "rank-2"])

    def test_a_disk_pool_larger_than_the_disk_is_refused_at_start(self):
        with tempfile.TemporaryDirectory() as directory:
            self.expect_refused(["--disk-pool", "1048576TiB", "--disk-directory", directory], "is free in")

    def test_a_wrong_command_line_is_2(self):
        self.expect_refused(["--coordinator", "nocolon"], "HOST:PORT")
        self.expect_refused(["--disk-pool", "64MiB"], "needs --disk-directory")
        self.expect_refused(["--group-name", "a\nb"], "control characters")


class ServiceProgramsTest(unittest.TestCase):
    """Coordinator, client and decode node. Nothing listens at the address that the client uses."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="millrace-e2e-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.output = os.path.join(self.directory, "out.json")
        self.prompt = os.path.join(self.directory, "prompt.bin")
        with open(self.prompt, "wb") as file:
            file.write(bytes(16))

    def run_program(self, program, *options):
        done = subprocess.run([os.path.join(BIN_DIR, f"millrace-{program}"), *options], capture_output=True, text=True,
                              timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout + done.stderr

    def client(self, *options):
        return self.run_program("client", "--server", "127.0.0.1:1", "--output", self.output, *options)

    def test_a_wrong_command_line_is_2(self):
        for program, options, words in (
                ("coordinator", ["--http-port", "65536"], "from 0 to 65535; not '65536'"),
                ("coordinator", ["--max-body-bytes", "5x"], "unknown unit"),
                ("coordinator", ["--body-pool", "1MiB"], "less than --max-body-bytes"),
                ("client", [], "subcommand"),
                ("client", ["wait-ready", "--timeout", "-1"], "must be a number from 0"),
                ("client", ["status", "a/b"], "a request id has 1 to 128 letters"),
                ("client", ["renew", "r", "--lease-id", "l", "--lease-ms", "0"], "from 1 to 86400000; not '0'"),
                ("client", ["--server", "host:http", "status", "r"], "is not a number from 1 to 65535"),
                ("decode", ["--model", MODEL_DIR], "--manifest or --events is required"),
                ("decode", ["--model", MODEL_DIR, "--manifest", "x", "--max-tokens", "0"], "from 1 to 65536; not '0'")):
            with self.subTest(program=program, options=options):
                status, said = self.run_program(program, *options)
                self.assertEqual(status, 2, said)
                self.assertIn(words, said)

    def test_help_and_version_are_0_and_failures_1(self):
        for program in "coordinator", "client", "decode", "calibrate":
            for option in "--help", "--version":
                self.assertEqual(self.run_program(program, option)[0], 0)
        self.assertEqual(self.run_program("coordinator", "--host", "nowhere")[0], 1)
        self.assertEqual(self.client("status", "r")[0], 1)

    def test_an_output_that_cannot_be_written_is_said_before_anything_is_asked(self):
        self.output = os.path.join(self.directory, "missing", "out.json")
        for command in (["status", "r"], ["prefill", "--prompt", self.prompt, "--model", "m"],
                        ["prefill", "--prompt", self.prompt, "--model", "m", "--events"]):
            with self.subTest(command=command):
                status, said = self.client(*command)
                self.assertEqual(status, 1, said)
                self.assertIn(f"cannot write {self.output}", said)
        status, said = self.run_program("decode", "--model", MODEL_DIR, "--manifest", "/nonexistent", "--output", self.output)
        self.assertEqual(status, 1, said)
        self.assertIn(f"cannot write {self.output}", said)

    def test_an_output_is_replaced_by_a_result_only(self):
        self.assertEqual(self.client("status", "r")[0], 1)
        self.assertFalse(os.path.exists(self.output))
        with open(self.output, "w") as file:
            file.write("earlier")
        self.assertEqual(self.client("prefill", "--prompt", self.prompt, "--model", "m", "--events")[0], 1)
        with open(self.output) as file:
            self.assertEqual(file.read(), "earlier")

    def test_waiting_for_no_time_asks_once(self):
        status, said = self.client("wait-ready", "--timeout", "0")
        self.assertEqual(status, 1, said)
        self.assertIn("connect to 127.0.0.1:1", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
