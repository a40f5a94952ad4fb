#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""millrace-calibrate: its plan runs in millrace-batch, a second run gives the same plan, what it refuses, and what it leaves when ended early."""
import json
import os
import signal
import subprocess
import tempfile
import unittest

from service import BIN_DIR, MODEL_DIR, PATIENCE_S, make_prompt, wait_until

# Not a real machine's costs: with a file of costs nothing is measured.
COSTS = {"device": "test", "dtype": "float32", "query_heads": 8, "kv_heads": 2, "head_dim": 128, "tokens": 4096, "listed_block": 1,
         "gathered_block": 1.414, "probed_page": 0.5, "pooled_block": 0.007, "sampled_block": 0.005}
TOKENS = 1024
LAYERS, HEADS = 5, 8


class CalibrateTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="millrace-e2e-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.input = self.write_prompts(1)
        self.costs = self.write("costs.json", json.dumps(COSTS))
        self.plan = self.path("plan.json")

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def write_prompts(self, count):
        return self.write("prompts.jsonl", "".join(json.dumps({**make_prompt(TOKENS, seed=i), "id": f"p{i}"}) + "\n" for i in range(count)))

    def command(self, *options, output=None, input_path=None, costs=None, model=MODEL_DIR):
        return [os.path.join(BIN_DIR, "millrace-calibrate"), "patterns", "--model", model, "--device", "cpu", "--dtype", "float32",
                "--threads", "2", "--input", input_path or self.input, "--output", output or self.plan, "--costs", costs or self.costs,
                "--time", "0.6", *options]

    def calibrate(self, *options, **more):
        """Exit status and output."""
        done = subprocess.run(self.command(*options, **more), capture_output=True, text=True, timeout=PATIENCE_S)
        return done.returncode, done.stdout + done.stderr

    def batch(self, plan):
        output = self.path("out")
        done = subprocess.run([os.path.join(BIN_DIR, "millrace-batch"), "--model", MODEL_DIR, "--device", "cpu", "--dtype", "float32", "--threads", "2",
                               "--crossover-tokens", "0", "--input", self.input, "--output", output, "--head-plan", plan],
                              capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(output, "results.jsonl")) as file:
            return [json.loads(line) for line in file]

    def read(self, path):
        with open(path) as file:
            return file.read()

    def test_a_plan_runs_with_the_density_that_was_told_and_comes_out_again(self):
        self.write_prompts(2)
        status, said = self.calibrate()
        self.assertEqual(status, 0, said)
        # The row for all layers: "all", head counts of five patterns, time, density, mean and worst error.
        total = next(line for line in said.splitlines() if line.split()[:1] == ["all"]).split()
        self.assertEqual(sum(int(heads) for heads in total[1:6] if heads != "-"), LAYERS * HEADS)
        self.assertLess(float(total[7]), 1, said)
        results = self.batch(self.plan)
        # Layers after the first see other inputs than with dense attention, and the density of adaptive heads depends on them a little.
        told, ran = float(total[7]), sum(result["density"] for result in results) / len(results)
        self.assertAlmostEqual(ran, told, delta=0.1, msg=said)

        again = self.path("again.json")
        status, said = self.calibrate(output=again)
        self.assertEqual(status, 0, said)
        self.assertEqual(self.read(again), self.read(self.plan))

    def test_minference_s_form_is_written_where_it_can_be(self):
        status, said = self.calibrate("--format", "minference", "--patterns", "a-shape,vertical-slash,block-sparse")
        self.assertEqual(status, 0, said)
        plan = json.loads(self.read(self.plan))
        self.assertEqual([len(layer) for layer in plan], [HEADS] * LAYERS)
        self.assertTrue(all(entry[0] in ("stream_llm", "vertical_and_slash", "block_sparse") for layer in plan for entry in layer.values()))
        self.batch(self.plan)

        other = self.path("other.json")
        status, said = self.calibrate("--format", "minference", "--patterns", "adaptive", output=other)
        self.assertEqual(status, 2, said)
        self.assertIn("layer 0, head 0", said)
        self.assertFalse(os.path.exists(other))

    def test_layers_with_windows_are_not_searched(self):
        architectures = os.path.join(os.path.dirname(MODEL_DIR), "architectures")
        prompts = self.write("small.jsonl", json.dumps({"id": "a", "prompt_token_ids": [i * i % 96 for i in range(3000)]}) + "\n")
        costs = self.write("small_costs.json", json.dumps({**COSTS, "query_heads": 4, "kv_heads": 2, "head_dim": 64}))
        # Its first layer has a window, its second does not, and both have sinks.
        status, said = self.calibrate("--patterns", "a-shape", model=os.path.join(architectures, "gpt-oss"), input_path=prompts, costs=costs)
        self.assertEqual(status, 0, said)
        rows = [line.split() for line in said.splitlines()]
        self.assertIn("0 window of 37 tokens".split(), rows)
        self.assertIn(["1", "-", "4"], [row[:3] for row in rows])
        plan = json.loads(self.read(self.plan))
        layers = [*plan["layers"], {}, {}][:2]
        windowed, searched = ([layer.get("heads", {}).get(str(head), plan["default"]) for head in range(4)] for layer in layers)
        self.assertEqual(set(windowed), {"dense"})
        self.assertTrue(all(pattern.startswith("a-shape") for pattern in searched), searched)

        self.write("plan.json", "old")
        status, said = self.calibrate("--format", "minference", model=os.path.join(architectures, "gpt-oss"), input_path=prompts, costs=costs)
        self.assertEqual(status, 2, said)
        self.assertIn("layer 0 has a sliding window", said)
        status, said = self.calibrate(model=os.path.join(architectures, "window_mistral"), input_path=prompts, costs=costs)
        self.assertEqual(status, 2, said)
        self.assertIn("every layer has a sliding window", said)
        self.assertEqual(self.read(self.plan), "old")

    def test_costs_are_measured_once(self):
        costs = self.path("measured.json")
        for _ in range(2):
            status, said = self.calibrate("--patterns", "a-shape", costs=costs)
            self.assertEqual(status, 0, said)
            measured = json.loads(self.read(costs))
            self.assertEqual(set(measured), set(COSTS))
            with open(costs, "w") as file:
                json.dump({**measured, "gathered_block": 77}, file)
        self.assertEqual(json.loads(self.read(costs))["gathered_block"], 77)

    def test_what_cannot_be_done_is_refused_and_leaves_the_old_plan(self):
        long = self.write("long.jsonl", json.dumps({"id": "a", "prompt_token_ids": [1] * 2000}) + "\n")
        cases = [
            (("--time", "0"), {}, "--time"), (("--time", "1.01"), {}, "--time"), (("--time", "x"), {}, "--time"),
            (("--patterns", "triangle"), {}, "triangle"), (("--format", "yaml"), {}, "yaml"),
            ((), {"input_path": self.path("none.jsonl")}, "none.jsonl"),
            ((), {"input_path": self.write("empty.jsonl", "\n")}, "empty.jsonl: no prompts"),
            ((), {"input_path": self.write("bad.jsonl", "{")}, "bad.jsonl, line 1"),
            ((), {"input_path": self.write("strange.jsonl", json.dumps({"id": "a", "prompt_token_ids": [1] * 200 + [2048]}))}, "2048"),
            ((), {"input_path": self.write("short.jsonl", json.dumps({"id": "a", "prompt_token_ids": [1] * 64}))}, "64 tokens"),
            (("--max-prompt-tokens", "1000"), {"input_path": long}, "long.jsonl, line 1"),
            ((), {"costs": self.write("no_costs.json", "{}")}, "no_costs.json: device"),
            ((), {"costs": self.write("other_costs.json", json.dumps({**COSTS, "head_dim": 64}))}, "heads of 64 in float32"),
            ((), {"output": self.path("none/plan.json")}, "none/plan.json"),
        ]
        self.write("plan.json", "old")
        before = sorted(os.listdir(self.directory))
        for options, more, because in cases:
            with self.subTest(options=options, more=more):
                status, said = self.calibrate(*options, **more)
                self.assertEqual(status, 2, said)
                self.assertIn(because, said)
                self.assertEqual(self.read(self.plan), "old")
        self.assertEqual(sorted(os.listdir(self.directory)), before)

    def test_ended_early_it_leaves_no_file(self):
        before = sorted(os.listdir(self.directory))
        # The program takes longer for this prompt than the test takes to end it. The input is a pipe, which shows when the program is at work.
        pipe = self.path("pipe")
        os.mkfifo(pipe)
        process = subprocess.Popen(self.command(input_path=pipe), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        writer = []

        def opened():
            try:
                writer.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))  # fails until the pipe has a reader
            except OSError:
                self.assertIsNone(process.poll())
                return False
            return True

        wait_until("the input is read", opened, PATIENCE_S)
        self.addCleanup(os.close, writer[0])
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE_S), -signal.SIGTERM)
        os.unlink(pipe)
        self.assertEqual(sorted(os.listdir(self.directory)), before)


if __name__ == "__main__":
    unittest.main()
