# SPDX-License-Identifier: Apache-2.0
"""What clients do to a service: they send prompts of mixed lengths and do everything wrong that can be done with them. Each function
sends one or more requests, checks the answers, and returns the outcome as text."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time

from service import BIN_DIR, MODEL_DIR, StreamingDecode

# Nothing here takes longer, even on a machine with no core to spare.
HUNG_S = 240
DEADLINE_MS = 120_000
# Answers that a client may get at any time: no room, nobody there, too late.
REFUSALS = {429, 499, 503, 504}


class Clients:
    """`lives()` returns two counts, which grow when the coordinator or the group is no longer the same."""

    def __init__(self, service, model, prompts, faults, draw, lives):
        self.service, self.model, self.prompts, self.faults, self.draw, self.lives = service, model, prompts, faults, draw, lives
        self.hoard = []
        self.kinds = {self.plain: 6, self.together: 3, self.decoded: 4, self.streamed_and_decoded: 3, self.slow_reader: 2, self.hung_up: 3, self.deleted: 2,
                      self.too_late: 1, self.lease_runs_out: 2, self.slow_decode: 1, self.killed_decode: 1, self.hoarder: 6}

    lease_ms = 30_000  # of what is decoded

    # What clients of a service with tokens and traces add.
    def raw_headers(self):
        return ""

    def decode_environment(self):
        return {}

    def decode_options(self):
        return ()

    @staticmethod
    def coordinator_lives(life):
        """Whether the coordinator is up: its count grows when it is killed, and again when it is back."""
        return life[0] % 2 == 0

    def one(self):
        kind = self.draw.choices(list(self.kinds), list(self.kinds.values()))[0]
        prompt = self.draw.choice(self.prompts)
        life = self.lives()
        begin = time.monotonic()
        try:
            outcome = kind(prompt, life)
        except (OSError, http.client.HTTPException) as error:
            outcome = f"connection lost: {type(error).__name__}"
            if time.monotonic() - begin >= HUNG_S:
                self.faults.add("hung", f"{kind.__name__}: {error}")
            elif life == self.lives() and self.coordinator_lives(life):
                self.faults.add("wrong", f"{kind.__name__}: the connection ended, and the coordinator did not: {error!r}")
        return kind.__name__, outcome

    def _post(self, prompt, **fields):
        fields = {"deadline_ms": DEADLINE_MS, "lease_ms": self.lease_ms, "model": self.model, "cache": "both", **fields}
        status, _, body = self.service.request("POST", "/v1/prefill", self.service.prefill_body(prompt, **fields), timeout_s=HUNG_S)
        if status == 200:
            self._check_first(prompt, body)
        elif status not in REFUSALS:
            self.faults.add("wrong", f"status {status}: {body}")
        return status, body

    def _check_first(self, prompt, body):
        if body["first_token_id"] != prompt["answer_token_ids"][0]:
            self.faults.add("wrong", f"first token {body['first_token_id']}, expected {prompt['answer_token_ids'][0]}: {body['request_id']}")

    def _release(self, body):
        manifest = body["manifest"]
        self.service.request("POST", f"/v1/prefill/{manifest['request_id']}/lease:release", {"lease_id": manifest["lease_id"]}, timeout_s=HUNG_S)

    def _check_decoded(self, prompt, code, decoded, life):
        if code == 0 and decoded["generated_token_ids"] != prompt["answer_token_ids"]:
            self.faults.add("wrong", f"decoded {decoded['generated_token_ids']}, expected {prompt['answer_token_ids']}")
        elif code != 0 and life == self.lives():
            self.faults.add("wrong", f"no decoding though nothing was killed: {decoded}")
        return "right" if code == 0 else "group lost"

    def plain(self, prompt, _):
        status, body = self._post(prompt, head_plan=self.draw.choice(["dense", "adaptive"]))
        if status == 200:
            self._release(body)
        return status

    def together(self, prompt, life):
        """Sends several prompts at once, so that a group runs some side by side, with prefixes that others left in its cache. Decodes one."""
        prompts = [prompt, *self.draw.choices(self.prompts, k=5)]
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as threads:
            answers = list(threads.map(self._post, prompts))
        served = [(prompt, body) for prompt, (status, body) in zip(prompts, answers) if status == 200]
        outcome = "refused"
        if served:
            prompt, body = served[-1]
            outcome = self._check_decoded(prompt, *self._decode(body), life)
        for _, body in served:
            self._release(body)
        return outcome

    def decoded(self, prompt, life):
        status, body = self._post(prompt)
        if status != 200:
            return status
        outcome = self._check_decoded(prompt, *self._decode(body), life)
        self._release(body)
        return outcome

    def _decode(self, body, meanwhile=lambda process: None):
        """Exit status, with the output or the error text."""
        transport = self.draw.choice(["auto", "tcp"])
        with tempfile.NamedTemporaryFile("w", dir=self.service.directory.name) as manifest:
            json.dump(body, manifest)
            manifest.flush()
            process = subprocess.Popen([os.path.join(BIN_DIR, "millrace-decode"), "--manifest", manifest.name, "--model", MODEL_DIR,
                                        "--any-weights", "--max-tokens", "4", "--transport", transport, "--order",
                                        self.draw.choice(["position", "hot"]), *self.decode_options()], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, env={**os.environ, **self.decode_environment()})
            try:
                meanwhile(process)
                out, err = process.communicate(timeout=HUNG_S)
            except subprocess.TimeoutExpired:
                self.faults.add("hung", f"millrace-decode --transport {transport}")
                return 1, "hung"
            finally:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        return process.returncode, json.loads(out) if process.returncode == 0 else err

    def streamed_and_decoded(self, prompt, life):
        done = None
        with StreamingDecode("--any-weights") as decode:
            try:
                for name, data in self.service.prefill_events(prompt, model=self.model, handover="streaming", deadline_ms=DEADLINE_MS):
                    decode.pass_on(name, data)
                    done = data if name == "done" else done
            except AssertionError:  # the request was refused with status 429 or 503
                return "refused"
            if done is None:
                return "failed"
            self._check_first(prompt, done)
            outcome = self._check_decoded(prompt, *decode.result(), life)
        self._release(done)
        return outcome

    def slow_reader(self, prompt, _):
        """Reads a byte of the events now and then, through the smallest buffer that the system gives."""
        with self._raw(prompt, stream=True) as connection:
            text = b""
            while b"event: done" not in text and b"event: error" not in text and b"\r\n0\r\n\r\n" not in text:
                piece = connection.recv(16)
                if not piece or text.startswith(b"HTTP/1.1 4") or text.startswith(b"HTTP/1.1 503"):
                    return "refused" if text.startswith(b"HTTP/1.1") else "connection ended"
                text += piece
                time.sleep(0.02)
        return "done" if b"event: done" in text else "failed"

    @contextlib.contextmanager
    def _raw(self, prompt, **fields):
        """A connection on which a request has been sent."""
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.settimeout(HUNG_S)
            connection.connect(("127.0.0.1", self.service.http_port))
            body = json.dumps(self.service.prefill_body(prompt, **{"model": self.model, "lease_ms": 100, "deadline_ms": DEADLINE_MS, **fields}))
            connection.sendall(f"POST /v1/prefill HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{self.raw_headers()}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            yield connection

    def hung_up(self, prompt, _):
        """Closes the connection in the middle of the request."""
        with self._raw(prompt, stream=self.draw.random() < 0.5):
            time.sleep(self.draw.uniform(0, 0.5))
        return "gone"

    def deleted(self, prompt, _):
        request_id = f"deleted-{time.monotonic_ns()}"
        with self._raw(prompt, request_id=request_id, stream=True) as connection:
            connection.recv(64)
            time.sleep(self.draw.uniform(0, 0.3))
            status, _, _ = self.service.request("DELETE", f"/v1/prefill/{request_id}", timeout_s=HUNG_S)
            while connection.recv(4096):
                pass
        return status

    def too_late(self, prompt, _):
        return self._post(prompt, deadline_ms=self.draw.randint(1, 300), lease_ms=100)[0]

    def lease_runs_out(self, prompt, life):
        """Pages of an expired lease belong to nobody, unless another client of the same prompt has a lease of them: with this salt none has."""
        status, body = self._post(prompt, lease_ms=1, cache_salt=str(self.draw.random()))
        if status != 200:
            return status
        path = f"/v1/prefill/{body['request_id']}"
        while life == self.lives() and (state := self.service.request("GET", path, timeout_s=HUNG_S)[2].get("lease", {}).get("state")) == "active":
            time.sleep(0.05)
        if life != self.lives():
            return "group lost"
        code, decoded = self._decode(body)
        if code == 0:
            self.faults.add("wrong", f"pages of a lease that is {state}: {decoded}")
        return "refused as it should be"

    def slow_decode(self, prompt, life):
        """Stops a decode process while it pulls, for as long as a busy machine might."""
        status, body = self._post(prompt)
        if status != 200:
            return status

        def stop_a_while(process):
            time.sleep(self.draw.uniform(0, 0.2))
            process.send_signal(signal.SIGSTOP)
            time.sleep(self.draw.uniform(0, 2))
            process.send_signal(signal.SIGCONT)
        outcome = self._check_decoded(prompt, *self._decode(body, stop_a_while), life)
        self._release(body)
        return outcome

    def killed_decode(self, prompt, _):
        status, body = self._post(prompt, lease_ms=2000)
        if status != 200:
            return status

        def kill(process):
            time.sleep(self.draw.uniform(0, 0.3))
            process.kill()
        self._decode(body, kill)
        return "killed"

    def hoarder(self, prompt, _):
        """Keeps its leases until the pools are full, and now and then releases all of them."""
        status, body = self._post(prompt, lease_ms=60000)
        if status == 200:
            self.hoard.append(body)
        if status == 429 or self.draw.random() < 0.03:
            self.give_back()
        return status

    def give_back(self):
        while self.hoard:
            self._release(self.hoard.pop())
