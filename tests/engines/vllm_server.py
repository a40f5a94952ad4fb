#!/usr/bin/env python3
"""vLLM's OpenAI server with MillraceConnector under load, by hand: right answers, what its own counters say, and the same while groups are killed.

    build/engines/venv/bin/python tests/engines/vllm_server.py [--prompts 100] [--concurrency 4] [--tokens 4096 16384] [--tp 1] [--kills 0] [--own]

Needs what tests/engines/run has installed, MILLRACE_SOURCE_DIR and MILLRACE_BIN_DIR. --kills: groups killed at random times, a new one each time.
--own: compares with vLLM's own prefill of each prompt as well as with the record that the prompt asks for. Prints JSON; exit status 1 for a wrong
answer, one that does not come, and a lease that stays."""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.environ["MILLRACE_SOURCE_DIR"], "tests/e2e"))
from service import MODEL_DIR, Service, free_ports, make_prompt, wait_until  # noqa: E402

ANSWER_TOKENS = 4
PATIENCE_S = 600


class Server:
    def __init__(self, coordinator, tp, log_path):
        self.port = free_ports(1)
        config = {"kv_connector": "MillraceConnector", "kv_connector_module_path": "millrace_kv.connector", "kv_role": "kv_consumer",
                  "kv_connector_extra_config": {"coordinator": coordinator, "max_wait_s": PATIENCE_S}}
        environment = dict(os.environ, VLLM_CPU_KVCACHE_SPACE="2", VLLM_NO_USAGE_STATS="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
                           OMP_NUM_THREADS=str(max(1, os.cpu_count() // tp)), VLLM_WORKER_MULTIPROC_METHOD="spawn")
        self.log_path = log_path
        with open(log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL_DIR, "--served-model-name", "fixture", "--skip-tokenizer-init",
                 "--enforce-eager", "--max-model-len", "16448", "--tensor-parallel-size", str(tp), "--host", "127.0.0.1", "--port", str(self.port),
                 "--kv-transfer-config", json.dumps(config)], stdout=log, stderr=log, env=environment, start_new_session=True)

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()

    def ready(self):
        assert self.process.poll() is None, f"vLLM's server has ended; see {self.log_path}"
        with contextlib.suppress(OSError):
            return self.call("GET", "/health")[0] == 200
        return False

    def complete(self, tokens, **extra):
        status, text = self.call("POST", "/v1/completions", {
            "model": "fixture", "prompt": tokens, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True, "detokenize": False,
            "return_token_ids": True, **extra})
        assert status == 200, text
        return json.loads(text)["choices"][0]["token_ids"]

    def counters(self):
        text = self.call("GET", "/metrics")[1]
        found = re.findall(r'^vllm:prompt_tokens_by_source_total\{.*source="(\w+)".*\} (\S+)$', text, re.M)
        return {source: int(float(value)) for source, value in found}

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Killer:
    """Kills the group at random times as long as there is work, and starts another."""

    def __init__(self, service, group, kills, group_options):
        self.kills = 0
        self._service, self._group, self._left, self._options = service, group, kills, group_options
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        numbers = random.Random(1)
        while self.kills < self._left and not self._stop.wait(numbers.uniform(0.2, 6)):
            os.killpg(self._group.pid, signal.SIGKILL)
            for pid in self._service.ranks().values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.kills += 1
            self._group = self._service.start_group(*self._options, cp=2, wait=False)
            with contextlib.suppress(AssertionError):
                wait_until("a ready group", lambda: self._stop.is_set() or self._service.get("/ready")[0] == 200, 60)

    def close(self):
        self._stop.set()
        self._thread.join(120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs=2, default=[4096, 16384])
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--log", default="/tmp/vllm_server.log")
    args = parser.parse_args()
    numbers = random.Random(7)
    prompts = [make_prompt(numbers.randint(*args.tokens), seed=100 + index) for index in range(args.prompts)]
    group_options = "--dtype", "bfloat16"
    service = Service()
    group = service.start_group(*group_options, cp=2)
    server = Server(f"127.0.0.1:{service.http_port}", args.tp, args.log)
    try:
        began = time.monotonic()
        wait_until("vLLM's server", server.ready, PATIENCE_S)
        started = time.monotonic()
        killer = Killer(service, group, args.kills, group_options)

        def answer(prompt):
            return server.complete(prompt["prompt_token_ids"])
        with concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool:
            answers = list(pool.map(answer, prompts))
        ended = time.monotonic()
        killer.close()
        counters = server.counters()
        report = {"prompts": len(prompts), "prompt_tokens": sum(len(prompt["prompt_token_ids"]) for prompt in prompts), "vllm_tp": args.tp,
                  "start_s": round(started - began, 1), "seconds": round(ended - started, 1), "kills": killer.kills,
                  "right": sum(answer == prompt["answer_token_ids"] for answer, prompt in zip(answers, prompts)), "prompt_tokens_by_source": counters}
        if args.own:
            own = [server.complete(prompt["prompt_token_ids"], kv_transfer_params={"millrace": False}) for prompt in prompts]
            report["equal_to_own"] = sum(one == other for one, other in zip(answers, own))
        wait_until("a group", lambda: service.get("/ready")[0] == 200, 60)
        wait_until("the end of all leases", lambda: "\nmillrace_active_leases 0" in service.get("/metrics")[2], 150)
        print(json.dumps(report))
        return 0 if report["right"] == len(prompts) and report.get("equal_to_own", len(prompts)) == len(prompts) else 1
    finally:
        server.close()
        service.close()


if __name__ == "__main__":
    sys.exit(main())
