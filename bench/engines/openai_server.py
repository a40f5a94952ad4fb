# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM's OpenAI server as a process, on the CPU or on GPUs, with MillraceConnector set by configuration alone, and reads its metrics and log.
Standard library only."""
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time

# An answer that takes longer counts as hung.
PATIENCE_S = 600
_ITERATION = re.compile(rb"Iteration\(\d+\): \d+ context requests, (\d+) context tokens, \d+ generation requests, (\d+) generation tokens")


def _runs(process_group):
    """Whether a process of the group runs. One that nobody waits for does not."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat") as file:
                state, _, group = file.read().rsplit(")", 1)[1].split()[:3]
            if int(group) == process_group and state not in "ZX":
                return True
    return False


class OpenAIServer:
    """Serves `model_dir` as "fixture". `coordinator`: None for a vLLM without the connector. `options` are vLLM's option names and values in turn;
    `extra` goes into kv_connector_extra_config. `gpus`: numbers of GPUs as in CUDA_VISIBLE_DEVICES; "" for a vLLM on the CPU. On GPUs decode steps
    are CUDA graphs; nothing is compiled."""

    def __init__(self, model_dir, coordinator, port, log_path, tp=1, extra=None, options=(), gpus="", max_model_len=16896):
        self.port, self.log_path = port, log_path
        connector = []
        if coordinator is not None:
            config = {"kv_connector": "MillraceConnector", "kv_connector_module_path": "millrace_kv.connector", "kv_role": "kv_consumer",
                      "kv_connector_extra_config": {"coordinator": coordinator, "max_wait_s": PATIENCE_S, **(extra or {})}}
            connector = ["--kv-transfer-config", json.dumps(config)]
        # vLLM's ranks and the group's share the cores.
        environment = dict(os.environ, VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
                           OMP_NUM_THREADS=str(max(1, os.cpu_count() // tp)), VLLM_WORKER_MULTIPROC_METHOD="spawn")
        how = ["--enforce-eager"]
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus
            how = ["--compilation-config", json.dumps({"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"})]
        # The command `vllm` needs the metadata of all packages that vLLM names; the engines of tests/engines lack some of them.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model_dir, "--served-model-name", "fixture",
                   "--skip-tokenizer-init", *how, "--dtype", "bfloat16", "--max-model-len", str(max_model_len), "--tensor-parallel-size", str(tp),
                   # Worker processes spin while requests wait for their caches; a single rank needs none.
                   "--distributed-executor-backend", "uni" if tp == 1 else "mp",
                   "--enable-logging-iteration-details", "--host", "127.0.0.1", "--port", str(port), *connector]
        with open(log_path, "wb") as log:
            self._process = subprocess.Popen([*command, *map(str, options)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                                             start_new_session=True)
        if tp > 1 and not gpus:
            self._leave_cores_to_others()

    def _leave_cores_to_others(self):
        """Lowers the session's autogroup priority. Worker processes that spin and yield take nearly all of two cores from a group that computes,
        whatever their own nice value is, because sessions share the cores evenly (autogroup in sched(7))."""
        with contextlib.suppress(OSError), open(f"/proc/{self._process.pid}/autogroup", "w") as file:
            file.write("19")

    def _request(self, connection, method, path, body=None):
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse()

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            response = self._request(connection, method, path, body)
            return response.status, response.read().decode()

    def ready(self):
        if self._process.poll() is not None:
            raise RuntimeError(f"vLLM's server has ended; see {self.log_path}")
        with contextlib.suppress(OSError):
            return self.call("GET", "/health")[0] == 200
        return False

    @staticmethod
    def body(tokens, max_tokens, **extra):
        return {"model": "fixture", "prompt": tokens, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "detokenize": False,
                "return_token_ids": True, **extra}

    def complete(self, tokens, max_tokens, **extra):
        """Returns (status, token ids or the error's text). Raises TimeoutError if no answer comes."""
        status, text = self.call("POST", "/v1/completions", self.body(tokens, max_tokens, **extra))
        return status, json.loads(text)["choices"][0]["token_ids"] if status == 200 else text

    def complete_alone(self, tokens, max_tokens):
        """Like complete(), with vLLM's own prefill, without the connector."""
        return self.complete(tokens, max_tokens, kv_transfer_params={"millrace": False})

    def stream(self, tokens, max_tokens, **extra):
        """Returns (seconds until the first token, token ids). Raises RuntimeError with what the server answers instead."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            body = json.dumps(self.body(tokens, max_tokens, stream=True, **extra))
            began, first, answer = time.monotonic(), None, []
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"vLLM answers {response.status}: {response.read(1000).decode(errors='replace')}")
            while line := response.readline():
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[len(b"data: "):])
                if "choices" not in event:
                    raise RuntimeError(f"vLLM's stream: {event}")
                new = event["choices"][0].get("token_ids") if event["choices"] else None
                if new and first is None:
                    first = time.monotonic() - began
                answer += new or []
            if len(answer) != max_tokens:
                raise RuntimeError(f"vLLM's stream ended after {len(answer)} of {max_tokens} tokens")
            return first, answer

    def abandon(self, tokens, max_tokens, after):
        """Posts a request, waits for `after()`, and hangs up, so that vLLM aborts it. Returns True if no answer had come by then."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(self.body(tokens, max_tokens)), {"Content-Type": "application/json"})
            after()
            connection.sock.setblocking(False)
            try:
                connection.sock.recv(1)
            except BlockingIOError:
                return True
            return False

    def metric(self, name):
        """Sum over all labels of a metric."""
        text = self.call("GET", "/metrics")[1]
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.M))

    def counters(self):
        """Returns what vLLM has counted so far. `computed` is the number of prompt tokens that its scheduler had computed, from its iteration log.
        Its Prometheus metrics count all tokens of a prompt that a connector brings as external, the last one included."""
        text = self.call("GET", "/metrics")[1]
        sources = dict(re.findall(r'^vllm:prompt_tokens_by_source_total\{.*source="(\w+)".*\} (\S+)$', text, re.M))
        counters = {source: int(float(value)) for source, value in sources.items()}
        with open(self.log_path, "rb") as log:
            counters["computed"] = sum(int(context) for context, _ in _ITERATION.findall(log.read()))
        counters["external_hits"] = int(self.metric("vllm:external_prefix_cache_hits_total"))
        counters["preemptions"] = int(self.metric("vllm:num_preemptions_total"))
        return counters

    def outcomes(self):
        """Returns how many prompts the connector has counted, by outcome."""
        text = self.call("GET", "/metrics")[1]
        return {name: int(float(value)) for name, value in re.findall(r'^vllm:millrace_prompts_total\{.*outcome="(\w+)".*\} (\S+)$', text, re.M)}

    def at_rest(self):
        """Whether no request runs or waits and no block is in use."""
        return not any(self.metric(name) for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"))

    def close(self):
        """Returns once none of the server's processes runs, since the next one on the same GPUs needs their memory."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        deadline = time.monotonic() + 20
        while _runs(self._process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
