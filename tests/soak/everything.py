# SPDX-License-Identifier: Apache-2.0
"""The soak with all of the service on: traces to a collector, cached pages to a subscriber, text and chats, every door, tokens of several
owners, clients that leave and return, and a page that is looked at. The coordinator is not killed, so that what it holds can be compared over
the whole time, and clients pause between requests. Needs the packages of tests/e2e/requirements.txt and openengine-requirements.txt, a Python
for the tokenizer that renders chats, and libmillrace_kv.so, which MILLRACE_KV_LIBRARY names, for OpenEngine's door."""
import collections
import concurrent.futures
import contextlib
import copy
import hashlib
import http.client
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import observed
import pypi
from clients import HUNG_S, REFUSALS, Clients
from service import BIN_DIR, MODEL_DIR, SOURCE_DIR, Service, free_ports, make_prompt, wait_until
from soak import Soak

E2E = os.path.join(SOURCE_DIR, "tests/e2e")
for requirements, folder in ("requirements.txt", "e2e-packages"), ("openengine-requirements.txt", "openengine-packages"):
    sys.path.append(pypi.install(os.path.join(E2E, requirements), os.path.join(SOURCE_DIR, "build", folder)))
os.environ["PYTHONPATH"] = os.pathsep.join([os.path.join(SOURCE_DIR, "sdk/python"), *sys.path[-2:], os.environ.get("PYTHONPATH", "")])
sys.path.insert(0, os.path.join(SOURCE_DIR, "sdk/python"))
import grpc  # noqa: E402
import msgpack  # noqa: E402
import zmq  # noqa: E402
from millrace_kv import openengine  # noqa: E402

sys.path.insert(0, os.path.join(SOURCE_DIR, "deploy/monitoring"))
from trace_receiver import read_spans  # noqa: E402

OWNERS = "one", "two", "three"
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
SAMPLED_EVERY_S = 60
# Counters and gauges in each sample.
IN_SAMPLES = ("millrace_trace_spans_exported_total", "millrace_trace_spans_dropped_total", "millrace_trace_export_failures_total")
COUNTED = ("millrace_prefill_joined_total", "millrace_prefill_resumed_total", "millrace_prefill_wasted_token_layers_total",
           "millrace_suspended_requests", "millrace_held_leases",
           "millrace_unattended_requests", "millrace_log_lines_left_out_total", "millrace_queued_requests", "millrace_running_requests")


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


class Collector:
    """Takes traces as OpenTelemetry's collector does, and keeps only how many spans came from each program."""

    def __init__(self):
        self.spans = collections.Counter()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                spans = read_spans(self.rfile.read(int(self.headers["Content-Length"])))
                collector.spans.update(span.service for span in spans)
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.2,), daemon=True).start()


class OwnersService(Service):
    """A service that asks for tokens. Requests are those of the owner whose token this object has: as_owner() returns another such object."""
    token = "ops"

    def as_owner(self, token):
        other = copy.copy(self)
        other.token = token
        return other

    def connection(self, timeout_s, port=None):
        authorization = {"Authorization": f"Bearer {self.token}"}

        class Connection(http.client.HTTPConnection):
            def request(self, method, url, body=None, headers=()):
                super().request(method, url, body, dict(headers) | authorization)
        return Connection(self.address, port or self.http_port, timeout=timeout_s)


class Everyone(Clients):
    """More clients: through other doors, with text, and such as leave and return. `door` is the address of OpenEngine's server."""
    lease_ms = 1000 * HUNG_S  # outlasts the other prompts of a client, however busy the machine is

    def __init__(self, service, model, prompts, faults, draw, lives, door, endpoint):
        super().__init__(service, model, prompts, faults, draw, lives)
        self.door, self.endpoint = door, endpoint
        self.kinds |= {self.left: 10, self.same: 3, self.text: 3, self.chat: 3, self.generate: 3, self.behind_others: 3, self.progress: 2}
        if door:
            self.kinds[self.opened] = 3

    def raw_headers(self):
        return f"Authorization: Bearer {self.service.token}\r\n"

    def decode_environment(self):
        return {"TRACEPARENT": f"00-{self.draw.getrandbits(128):032x}-{self.draw.getrandbits(64):016x}-01"}

    def decode_options(self):
        return "--otlp-endpoint", self.endpoint

    def _salted(self):
        return {"cache_salt": f"s{self.draw.getrandbits(64)}"}

    def _posted(self, path, body, answer_of, expected):
        status, _, body = self.service.request("POST", path, body, timeout_s=HUNG_S)
        if status == 200:
            if (answer := answer_of(body)) != expected:
                self.faults.add("wrong", f"{path}: {answer}, expected {expected}")
            lease = body["kv_transfer_params"]["millrace"]
            self.service.request("POST", f"/v1/prefill/{lease['request_id']}/lease:release", {"lease_id": lease["lease_id"]}, timeout_s=HUNG_S)
        elif status not in REFUSALS:
            self.faults.add("wrong", f"{path}: status {status}: {body}")
        return status

    def left(self, prompt, _):
        """Leaves after a while, in each of the ways, and mostly comes back with the same prompt, at times under the same id."""
        fields = {"on_disconnect": self.draw.choice(["cancel", "finish", "suspend", "suspend"]), "head_plan": self.draw.choice(["dense", "adaptive"]),
                  "request_id": f"left-{self.draw.getrandbits(64)}", **self._salted()}
        layers = self.draw.choice([0, 0, 1, 1, 2, 3])
        with self._raw(prompt, stream=True, cache="both", **fields) as connection:
            text = b""
            while text.count(b"event: layer") < layers and b"event: error" not in text and b"event: done" not in text:
                piece = connection.recv(4096)
                if not piece or text.startswith(b"HTTP/1.1 4") or text.startswith(b"HTTP/1.1 503"):
                    return "refused"
                text += piece
        if self.draw.random() < 0.2:
            return "gone for good"
        if self.draw.random() < 0.3:
            time.sleep(self.draw.uniform(0, 3))
        if self.draw.random() < 0.5:
            del fields["request_id"]
        status, body = self._post(prompt, **fields)
        if status != 200:
            return f"returned: {status}"
        self._release(body)
        return f"returned: {'joined' if body['joined'] else 'computed'}"

    def same(self, prompt, _):
        """Several clients want the same at once; one of them cannot wait."""
        fields = {"on_disconnect": "finish", **self._salted()}
        waits = [{}, {}, {"deadline_ms": self.draw.randint(50, 500)}]
        with concurrent.futures.ThreadPoolExecutor(len(waits)) as threads:
            answers = list(threads.map(lambda wait: self._post(prompt, **{**fields, **wait}), waits))
        for status, body in answers:
            if status == 200:
                self._release(body)
        return "/".join(str(status) for status, _ in answers)

    def behind_others(self, prompt, life):
        """A long prompt and short ones behind it, which run between its layers. The long one is decoded."""
        long = max(self.prompts, key=lambda one: len(one["prompt_token_ids"]))
        short = min(self.prompts, key=lambda one: len(one["prompt_token_ids"]))
        with concurrent.futures.ThreadPoolExecutor(3) as threads:
            first = threads.submit(self._post, long, **self._salted())
            others = [threads.submit(self._post, short, **self._salted()) for _ in range(2)]
            answers = [first.result(), *(other.result() for other in others)]
        outcome = "refused"
        if answers[0][0] == 200:
            outcome = self._check_decoded(long, *self._decode(answers[0][1]), life)
        for status, body in answers:
            if status == 200:
                self._release(body)
        return outcome

    def text(self, prompt, _):
        return self._posted("/v1/completions", {"model": self.model, "prompt": prompt["text"], "max_tokens": 1},
                            lambda body: body["choices"][0]["token_ids"], prompt["answer_token_ids"][:1])

    def chat(self, prompt, _):
        words = prompt["text"]
        cut = words.index("\n", len(words) // 2)
        said = [{"role": "user", "content": words[:cut]}, {"role": "user", "content": words[cut:]}]
        return self._posted("/v1/chat/completions", {"model": self.model, "messages": said, "max_tokens": 1},
                            lambda body: body["choices"][0]["token_ids"], prompt["answer_token_ids"][:1])

    def generate(self, prompt, _):
        return self._posted("/inference/v1/generate", {"model": self.model, "token_ids": prompt["prompt_token_ids"], "stream": False,
                                                       "sampling_params": {"max_tokens": 1, "extra_args": {"kv_transfer_params": {"do_remote_decode": True}}}},
                            lambda body: body["choices"][0]["token_ids"], prompt["answer_token_ids"][:1])

    def progress(self, prompt, _):
        """Reads a completion's progress from a stream, and leaves its lease to time."""
        body = {"model": self.model, "prompt": prompt["prompt_token_ids"], "max_tokens": 1, "stream": True, "return_progress": True,
                "millrace": {"lease_ms": 500, "on_disconnect": "finish", **self._salted()}}
        status, _, text = self.service.request("POST", "/v1/completions", body, timeout_s=HUNG_S)
        if status == 200 and f'"token_ids":[{prompt["answer_token_ids"][0]}]' not in text and '"error"' not in text:
            self.faults.add("wrong", f"stream of a completion: {text[-400:]}")
        return status

    def opened(self, prompt, _):
        """Through OpenEngine's door, whose server has a token of its own."""
        messages = openengine.messages
        with grpc.insecure_channel(self.door) as channel:
            call = channel.unary_stream("/openengine.v1.Inference/Generate", lambda ask: ask.SerializeToString(), messages.GenerateResponse.FromString)
            ask = messages.GenerateRequest(request_id=f"open-{self.draw.getrandbits(64)}", model="model-steady",
                                           token_ids=messages.TokenIds(ids=prompt["prompt_token_ids"]))
            try:
                (answer,) = call(ask, timeout=HUNG_S)
            except grpc.RpcError as error:
                return str(error.code())
        if answer.WhichOneof("event") == "error":
            return messages.ErrorCode.Name(answer.error.code)
        return answer.WhichOneof("event")


class Everything(Soak):
    def __init__(self, seconds, num_clients, seed, tokenizer_python, kill_every_s=60, think_s=2.0, samples=None, pause=None):
        self.tokenizer_python, self.kill_every_s, self.think_s, self.samples_path, self.pause = tokenizer_python, kill_every_s, think_s, samples, pause
        self.collector = Collector()
        self.events = collections.Counter()
        self.paused_s = 0.0
        self.lines = []  # of samples
        self.door = None
        super().__init__(seconds, num_clients, seed)

    def make_service(self):
        self.scratch = os.path.join("/tmp", f"millrace-soak-{os.getpid()}")
        os.makedirs(self.scratch)
        shutil.copy(os.path.join(MODEL_DIR, "tokenizer.json"), self.scratch)
        with open(os.path.join(self.scratch, "tokenizer_config.json"), "w") as file:
            json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>", "chat_template": TEMPLATE}, file)
        tokens = os.path.join(self.scratch, "tokens")
        with open(tokens, "w") as file:
            file.write(f"ops {digest('ops')} admin\n" + "".join(f"{name} {digest(name)} prefill\n" for name in OWNERS))
        tokenizers = [word for name in ("steady", "doomed") for word in ("--tokenizer", f"model-{name}={self.scratch}")]
        return OwnersService(["--tokens", tokens, "--otlp-endpoint", self.collector.endpoint, *tokenizers, "--tokenizer-chat", "--tokenizer-processes", 1,
                              "--tokenizer-python", self.tokenizer_python, "--suspend-tokens", 512, "--suspended-time", 20, "--held-result-time", 5],
                             admin_port=True)

    def group_options(self, name):
        # Each group publishes to an address of its own; only the steady one has a subscriber.
        self.events_endpoint = f"ipc://{self.scratch}/events-steady"
        return {"--host-pool": "64MiB", "--device-pool": "8MiB", "--disk-pool": "64MiB", "--preempt-tokens": 1024, "--side-by-side-tokens": 1024,
                "--kv-events-endpoint": f"ipc://{self.scratch}/events-{name}"}

    def make_prompts(self):
        with open(os.path.join(MODEL_DIR, "tokenizer.json")) as file:
            vocabulary = json.load(file)["model"]["vocab"]
        words = {token_id: word for word, token_id in vocabulary.items()}
        for seed, tokens in enumerate((320, 450, 640, 777, 1024, 1500, 2048, 3000, 4000)):
            prompt = make_prompt(tokens, seed=100 + seed)
            prompt["text"] = "".join(words[token_id] for token_id in prompt["prompt_token_ids"][1:])  # the tokenizer adds <bos>
            yield prompt

    def make_clients(self, name, draw, lives, number):
        service = self.service.as_owner(OWNERS[number % len(OWNERS)])
        return Everyone(service, f"model-{name}", self.prompts, self.faults, draw, lives, self.door, self.collector.endpoint)

    def long_lived(self):
        pids = super().long_lived() | {"OpenEngine's server": self.door_server.pid, "the soak itself": os.getpid()}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
                name, fields = file.read().rsplit(")", 1)
                if int(fields.split()[1]) == self.service.coordinator.pid and name.endswith("(mr-tokenizer"):
                    pids[f"tokenizer {pid}"] = int(pid)
        return pids

    def begin(self):
        """The door, and those who watch."""
        port_file, log_path = os.path.join(self.scratch, "door-port"), os.path.join(self.service.directory.name, "openengine.log")
        token = os.path.join(self.scratch, "token")
        with open(token, "w") as file:
            file.write("one\n")
        with open(log_path, "w") as log:
            self.door_server = subprocess.Popen(
                [sys.executable, "-m", "millrace_kv.openengine", "--coordinator", f"127.0.0.1:{self.service.http_port}", "--listen", "127.0.0.1:0",
                 "--port-file", port_file, "--min-tokens", "1", "--lease-ms", "2000", "--coordinator-model", "model-steady", "--served-model-name", "model-steady"], stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "MILLRACE_TOKEN_FILE": token})
        wait_until("OpenEngine's port", lambda: os.path.exists(port_file) or self.door_server.poll() is not None, 60)
        with open(port_file) as file:
            self.door = f"127.0.0.1:{int(file.read())}"
        return [self.subscribe, self.look, self.sample_each_minute]

    def subscribe(self):
        """Follows the steady group's cached pages: no message may be missing, and none stored twice."""
        held = set()
        with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
            subscriber.setsockopt(zmq.RCVHWM, 0)
            subscriber.connect(self.events_endpoint)
            subscriber.subscribe("")
            last = None
            while not self.stop.is_set():
                if not subscriber.poll(200):
                    continue
                _, sequence, payload = subscriber.recv_multipart()
                number = int.from_bytes(sequence, "big")
                if last is not None and number != last + 1:
                    self.faults.add("wrong", f"KV events: message {number} came after {last}")
                for event in msgpack.unpackb(payload)[1]:
                    self.events[event["type"]] += 1
                    hashes = set(event.get("block_hashes", ()))
                    if event["type"] == "BlockStored":
                        if held & hashes:
                            self.faults.add("wrong", "KV events: a block was stored twice")
                        held |= hashes
                    elif event["type"] == "BlockRemoved":
                        held -= hashes
                    else:
                        held.clear()
                last = number
                self.events["messages"] += 1

    def look(self):
        """Looks at the page and what it reads, as a browser that is left open does, and at the same in a terminal."""
        looks = 0
        while not self.stop.wait(2):
            connection = self.service.connection(60, self.service.probe_port)
            with contextlib.closing(connection):
                for path in "/overview", *(["/"] if looks % 5 == 0 else []):
                    connection.request("GET", path)
                    response = connection.getresponse()
                    body = response.read()
                    if response.status != 200:
                        self.faults.add("wrong", f"the page: {path}: {response.status}")
                    if path == "/overview" and looks % 5 == 0:
                        for ended in json.loads(body).get("ended", [])[:1]:
                            connection.request("GET", f"/overview/{ended['request_id']}")
                            connection.getresponse().read()
            looks += 1
            if looks % 30 == 0:
                done = subprocess.run([os.path.join(BIN_DIR, "millrace-client"), "--server", f"127.0.0.1:{self.service.probe_port}", "top", "--once"],
                                      capture_output=True, text=True, timeout=HUNG_S, env={**os.environ, "MILLRACE_TOKEN": "ops"})
                if done.returncode != 0:
                    self.faults.add("wrong", f"millrace-client top: {done.stderr}")

    def sample_each_minute(self):
        begin = time.monotonic()
        number = 0
        while True:
            text = self.service.get("/metrics")[2]
            counts = {name: int(sum(self.values(text, name).values())) for name in IN_SAMPLES}
            held = {name: seen for name, pid in self.long_lived().items() if (seen := observed.of_process(pid))}
            for name, seen in held.items():
                own = [counts[IN_SAMPLES[0]], counts[IN_SAMPLES[1]], counts[IN_SAMPLES[2]]] if name == "coordinator" else ["-"] * 3
                self.lines.append([number, name, f"{seen['resident'] / (1 << 20):.1f}", f"{seen['anonymous'] / (1 << 20):.1f}", seen["descriptors"],
                                   seen["threads"], *own, sum(self.outcomes.values())])
            if self.samples_path:
                with open(self.samples_path, "w") as file:
                    file.write(self.minutes() + "\n")
            number += 1
            if self.stop.wait(max(0, begin + number * SAMPLED_EVERY_S - time.monotonic())):
                return

    def minutes(self):
        return observed.table(["minute", "process", "resident", "anonymous", "descriptors", "threads", "spans sent", "dropped", "failed sends",
                               "requests"], self.lines)

    def counted(self):
        return super().counted() + COUNTED

    def before_client(self, draw):
        """Pauses between requests, and as long as the file `pause` exists: for those who measure on the same machine."""
        self.stop.wait(draw.uniform(0, 2 * self.think_s))
        began = time.monotonic()
        while self.pause and os.path.exists(self.pause) and not self.stop.wait(1):
            pass
        self.paused_s += (time.monotonic() - began) / self.num_clients

    def between_kills(self, killer):
        killer.wait_until_it_serves()
        self.stop.wait(self.kill_every_s)
        while self.pause and os.path.exists(self.pause) and not self.stop.wait(1):
            pass

    kills_coordinator = False

    def at_quiet(self):
        """When nothing runs any more: every span has been sent."""
        def all_sent():
            return self.sampled_metric(IN_SAMPLES[0]) == self.collector.spans["millrace-coordinator"] + self.collector.spans["millrace-worker"]
        wait_until("the last spans", all_sent, 60)
        self.sent, self.dropped = (int(self.sampled_metric(name)) for name in IN_SAMPLES[:2])
        if self.dropped:
            self.faults.add("wrong", f"{self.dropped} spans were dropped")
        self.door_server.terminate()
        if self.door_server.wait(60) != 0:
            self.faults.add("wrong", f"OpenEngine's server ended with status {self.door_server.returncode}")

    def more_of_report(self):
        sent = sum(self.collector.spans.values())
        lines = [f"Spans: the coordinator sent {self.sent} and dropped {self.dropped}; the collector has {sent}: "
                 + ", ".join(f"{count} of {name}" for name, count in sorted(self.collector.spans.items())) + ".",
                 "KV events of steady: " + ", ".join(f"{count} {name}" for name, count in sorted(self.events.items())) + ".",
                 f"Clients were paused for {self.paused_s:.0f} s.", "",
                 "Once a minute, memory in MiB. Spans are those of the coordinator and of the groups, which it sends:", "", self.minutes(), ""]
        return lines

    def close(self):
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self.door_server.poll() is None:
            self.door_server.kill()
