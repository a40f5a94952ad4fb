#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""millrace_kv.dynamo with NVIDIA Dynamo 1.6: what its conformance kit asks of a backend, and its frontend, router and vLLM worker as processes."""
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

sys.path.insert(0, os.path.join(os.environ["MILLRACE_SOURCE_DIR"], "tests/e2e"))
from service import MODEL_DIR, NOTICED_S, PATIENCE_S, Service, ServiceTestCase, free_ports, make_prompt, wait_until  # noqa: E402

from dynamo._core import Context  # noqa: E402
from dynamo.common.constants import DisaggregationMode  # noqa: E402

from millrace_kv.coordinator import Coordinator, prompt_digest  # noqa: E402
from millrace_kv.dynamo import MillraceEngine  # noqa: E402

MIN_TOKENS = 512
NAME = "fixture"


class ConformanceTest(ServiceTestCase):
    """The checks of Dynamo's kit, which is in Rust (lib/backend-common/src/testing.rs), against a real coordinator and group; and the hand-over."""

    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group(cp=2)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def engine(self, *options, port=None):
        engine, self.config = asyncio.run(MillraceEngine.from_args(
            ["--model", MODEL_DIR, "--served-model-name", NAME, "--coordinator", f"127.0.0.1:{port or self.service.http_port}",
             "--min-tokens", str(MIN_TOKENS), *options]))
        return engine

    @staticmethod
    async def chunks(engine, token_ids, context=None, **fields):
        return [chunk async for chunk in engine.generate({"token_ids": token_ids, **fields}, context or Context())]

    def params(self, chunks):
        """What the decode worker gets. There is one chunk, the last."""
        (last,) = chunks
        self.assertEqual((last["finish_reason"], last["index"]), ("length", 0))
        return last["disaggregated_params"]["kv_transfer_params"]["millrace"]

    def test_life_of_an_engine(self):
        engine = self.engine()
        self.assertEqual(self.config.disaggregation_mode, DisaggregationMode.PREFILL)
        self.assertEqual((self.config.component, self.config.endpoint, self.config.served_model_name), ("prefill", "generate", NAME))
        prompts = [make_prompt(1024, seed)["prompt_token_ids"] for seed in range(8)]

        async def life():
            self.assertTrue((await engine.start(0)).model)
            self.assertEqual(await engine.kv_event_sources(), await engine.kv_event_sources())
            self.assertEqual(engine.component_metrics_dp_ranks(), [])
            answers = [await self.chunks(engine, [1, 2, 3])]
            answers += await asyncio.gather(*(self.chunks(engine, prompt, routing={"priority": 3}) for prompt in prompts))
            await asyncio.to_thread(engine._worker.wait)
            self.assertTrue(await engine.is_quiescent())
            await engine.cleanup()
            await engine.cleanup()
            return answers
        short, *answers = asyncio.run(life())
        self.assertIs(self.params(short), False)
        for prompt, answer in zip(prompts, answers):
            params = self.params(answer)
            self.assertEqual(params["prompt_sha256"], prompt_digest(prompt))
            Coordinator(f"127.0.0.1:{self.service.http_port}").release(params["request_id"], params["lease_id"])
        asyncio.run(self.engine().cleanup())  # never started

    def test_a_cancelled_request_ends_as_cancelled_in_time(self):
        engine = self.engine()
        coordinator = Coordinator(f"127.0.0.1:{self.service.http_port}")
        long, waiting = (make_prompt(16384, seed)["prompt_token_ids"] for seed in (30, 31))
        running = coordinator.prefill(NAME, long)
        self.addCleanup(running.close)
        self.service.wait_for_layers(running.request_id, 0)

        def queued():
            return self.service.get("/overview")[2]["queued"]

        async def cancelled(stop_at):
            context = Context()
            request = asyncio.ensure_future(self.chunks(engine, waiting, context))
            while not stop_at():
                await asyncio.sleep(0)
            context.stop_generating()
            return await asyncio.wait_for(request, NOTICED_S)  # the kit allows 2 s; --max-wait, which would end it too, is 60
        for stop_at in (lambda: True), queued:
            (last,) = asyncio.run(cancelled(stop_at))
            self.assertEqual(last["finish_reason"], "cancelled")
            wait_until("an empty queue", lambda: not queued(), 10)

    def test_what_millrace_does_not_take_is_declined(self):
        prompt = make_prompt(1024, 40)["prompt_token_ids"]
        nowhere = free_ports(1)
        for engine, fields in ((self.engine(port=nowhere), {}), (self.engine("--coordinator-model", "other"), {}),
                               (self.engine(), {"multi_modal_data": {"image_url": ["a"]}}), (self.engine(), {"routing": {"lora_name": "a"}}),
                               (self.engine(), {"token_ids": [*prompt, 1 << 20]})):
            with self.assertLogs("millrace_kv.dynamo", "WARNING") as logs:
                self.assertIs(self.params(asyncio.run(self.chunks(engine, **{"token_ids": prompt, **fields}))), False)
            self.assertIn("is left to the decode worker", logs.output[0])

    def test_a_salt_keeps_prompts_apart(self):
        prompt, engine = make_prompt(2048, 50)["prompt_token_ids"], self.engine()

        def cached(salt):
            params = self.params(asyncio.run(self.chunks(engine, prompt, extra_args={"nvext": {"cache_salt": salt}})))
            engine._worker.wait()
            return self.service.get(f"/v1/prefill/{params['request_id']}")[2]["cached_tokens"]
        self.assertEqual([cached("a") > 0, cached("a") > 0, cached("b") > 0], [False, True, False])


class ServedTest(ServiceTestCase):
    """Dynamo's frontend, millrace_kv.dynamo, and Dynamo's vLLM worker with MillraceConnector."""

    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-dynamo-"))
        self.service = Service()
        stack.callback(self.service.close)
        self.service.start_group("--dtype", "bfloat16", cp=2)
        self.model = os.path.join(self.folder, NAME)
        os.mkdir(self.model)
        for name in "config.json", "model.safetensors", "tokenizer.json":
            shutil.copy(os.path.join(MODEL_DIR, name), self.model)
        with open(os.path.join(self.model, "tokenizer_config.json"), "w") as file:
            json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>",
                       "chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}"}, file)
        self.processes = {}
        stack.callback(self.end)
        self.http_port = free_ports(1)
        coordinator = f"127.0.0.1:{self.service.http_port}"
        common = "--model", self.model, "--served-model-name", NAME
        self.start("frontend", "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(self.http_port))
        self.start("prefill", "-m", "millrace_kv.dynamo", *common, "--coordinator", coordinator, "--min-tokens", str(MIN_TOKENS))
        self.start("decode", "-m", "dynamo.vllm", *common, "--disaggregation-mode", "decode", "--enforce-eager", "--max-model-len", "8256",
                   "--max-num-seqs", "4", "--kv-transfer-config", json.dumps({
                       "kv_connector": "MillraceConnector", "kv_connector_module_path": "millrace_kv.connector", "kv_role": "kv_consumer",
                       "kv_connector_extra_config": {"coordinator": coordinator, "min_tokens": MIN_TOKENS}}))
        wait_until("a model at the frontend", self.is_served, PATIENCE_S)

    def start(self, name, *arguments):
        with open(os.path.join(self.service.directory.name, f"dynamo-{name}.log"), "w") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
                env=dict(os.environ, DYN_DISCOVERY_BACKEND="file", DYN_FILE_KV=os.path.join(self.folder, "discovery"), DYN_SYSTEM_PORT="0",
                         VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1",
                         OMP_NUM_THREADS=str(os.cpu_count() or 2)))

    def end(self):
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def is_served(self):
        for name, process in self.processes.items():
            self.assertIsNone(process.poll(), name)
        with contextlib.suppress(OSError):
            return json.load(urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v1/models", timeout=10))["data"]

    def ask(self, prompt):
        """The record that the prompt asks for, as Dynamo's client gets it."""
        body = {"model": NAME, "prompt": prompt["prompt_token_ids"], "max_tokens": 4, "temperature": 0, "nvext": {"extra_fields": ["engine_data"]}}
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)["nvext"]["engine_data"]["completion_token_ids"]

    def pulled(self):
        """How many caches vLLM says it has pulled."""
        with open(os.path.join(self.service.directory.name, "dynamo-decode.log"), errors="replace") as file:
            return sum(int(line.split("pulled=")[1].split(",")[0].split()[0]) for line in file if "KV Transfer metrics" in line and "pulled=" in line)

    def test_prompts_get_right_answers_with_millrace_and_without(self):
        prompts = [make_prompt(2048, seed) for seed in range(60, 64)]
        self.assertEqual(self.ask(prompts[0]), prompts[0]["answer_token_ids"])
        # The same prompt twice at once: the second joins the first one's prefill.
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(self.ask(prompts[1]))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        self.assertEqual(answers, [prompts[1]["answer_token_ids"]] * 2)
        wait_until("vLLM's count of pulled caches", lambda: self.pulled() == 3, 60)
        self.assertEqual({entry["lease"] for entry in self.service.get("/overview")[2]["ended"]}, {"released"})
        short = make_prompt(256, 65)
        self.assertEqual(self.ask(short), short["answer_token_ids"])
        self.service.coordinator.kill()
        self.service.coordinator.wait(20)
        self.assertEqual(self.ask(prompts[2]), prompts[2]["answer_token_ids"])
        self.assertEqual(self.pulled(), 3)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
