# SPDX-License-Identifier: Apache-2.0
"""Runs a coordinator, worker groups and decode nodes as processes of a test. Standard library only.

Every wait polls its condition and has a deadline; close() leaves nothing running.
"""
import atexit
import contextlib
import glob
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

SOURCE_DIR = os.environ["MILLRACE_SOURCE_DIR"]
BIN_DIR = os.environ["MILLRACE_BIN_DIR"]
MODEL_DIR = os.path.join(SOURCE_DIR, "tests/models/fixture")

# How many times slower than a release build the programs are, because of sanitizers.
SLOWDOWN = float(os.environ.get("MILLRACE_SLOWDOWN", "1"))
# For waits that end by themselves: long enough to tell a hang from a slow and busy machine.
PATIENCE_S = 240
# For the loss of a rank, which is promised to be noticed within 1 s. A busy machine may need longer, but the loss must not be
# noticed only by one of the deadlines that would end the group anyway. The shortest of those is 30 s.
NOTICED_S = 15

POLL_S = 0.01


def wait_until(what, condition, timeout_s):
    """Returns the first true value of condition(); raises AssertionError with `what` when none comes in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s} s")
        time.sleep(POLL_S)


def make_prompt(tokens, seed):
    """One prompt with its answer, as tests/models/make_prompts.py writes it."""
    script = os.path.join(SOURCE_DIR, "tests/models/make_prompts.py")
    out = subprocess.run(["python3", script, "--tokens", str(tokens), "--records", "8", "--queries", "8", "--mode", "all",
                          "--count", "1", "--seed", str(seed)], check=True, capture_output=True, timeout=60)
    return json.loads(out.stdout)


def tokens_for(release_tokens):
    """The prompt length that takes these programs as long as `release_tokens` take a release build. Dense attention is quadratic in it."""
    return int(release_tokens / SLOWDOWN ** 0.5)


def free_ports(count):
    """The first of `count` consecutive free TCP ports, below the range that the system hands out."""
    for first in range(20000 + os.getpid() % 8000, 32000, count):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError(f"no {count} free ports")


def process_state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def alive(pid):
    """Whether the process runs and is not a zombie that waits for its parent."""
    try:
        return process_state(pid) not in "ZX"
    except OSError:
        return False


def stop(pid):
    """Returns once the process has stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(f"process {pid} to stop", lambda: process_state(pid) == "T", 10)


class InBackground:
    """A call on its own thread, and the time at which it ended."""

    def __init__(self, call):
        self.result = self.ended_at = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call):
        self.result = call()
        self.ended_at = time.monotonic()

    def wait(self, timeout_s):
        self._thread.join(timeout_s)
        assert self.ended_at is not None, f"no answer within {timeout_s} s"
        return self.result


class StreamingDecode:
    """millrace-decode running during a prefill; it gets the events that a test passes on."""

    def __init__(self, *options, model=MODEL_DIR):
        self._process = subprocess.Popen(
            [os.path.join(BIN_DIR, "millrace-decode"), "--events", "-", "--model", model, "--max-tokens", "4", *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def pass_on(self, name, data):
        # A decode node that has failed no longer reads; result() returns its reason.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"event: {name}\ndata: {json.dumps(data)}\n\n")
            self._process.stdin.flush()

    def wait_until_ready(self):
        """Waits until its model is loaded."""
        for line in self._process.stderr:
            if "ready for events" in line:
                return
        raise AssertionError("the decode node has ended")

    def result(self):
        """Exit status, with its output or its error text. The event stream stays open, so the node does not end because its events end."""
        self._process.wait(PATIENCE_S)
        out, err = self._process.communicate()
        return self._process.returncode, json.loads(out) if self._process.returncode == 0 else err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Service:
    """A coordinator, and methods that start groups and send requests."""
    address = "127.0.0.1"  # that the coordinator listens on, and its clients and groups connect to
    coordinator_options = ()
    byte_transfer_layers = "self,vader,tcp"  # Open MPI's, between ranks
    coordinator_name = None  # the name by which groups reach it; None: its address
    mpirun_options = ()
    decode_command = (os.path.join(BIN_DIR, "millrace-decode"),)
    rank_options = ""  # shell text, which each rank's host expands

    def __init__(self, coordinator_options=(), group_options=(), admin_port=False):
        """`admin_port`: whether to ask for readiness on a port of its own, for a coordinator that requires tokens or encrypts."""
        self._coordinator_options = [str(option) for option in coordinator_options]
        self._group_options = list(group_options)
        self._has_admin_port = admin_port
        self.directory = tempfile.TemporaryDirectory(prefix="millrace-e2e-")
        # The ranks' shared memory and mpirun's session directories. An mpirun that is killed removes neither.
        self.shared_memory = tempfile.TemporaryDirectory(prefix="millrace-e2e-", dir="/dev/shm")
        self.sessions = os.path.join(self.directory.name, "sessions")
        os.mkdir(self.sessions)
        self.groups = []
        atexit.register(self.close)  # in case the run is ended in the middle of a test
        self._ports_path = os.path.join(self.directory.name, "ports.json")
        self.http_port = self.group_port = 0
        self._start_coordinator()

    def _start_coordinator(self):
        self.coordinator = self._start("coordinator", [os.path.join(BIN_DIR, "millrace-coordinator"), "--host", self.address,
                                                       "--http-port", str(self.http_port), "--group-port", str(self.group_port),
                                                       "--port-file", self._ports_path,
                                                       *(["--admin-port", "0"] if self._has_admin_port else []),
                                                       *self.coordinator_options, *self._coordinator_options])
        wait_until("the coordinator's ports", lambda: os.path.exists(self._ports_path), 20)
        with open(self._ports_path) as file:
            ports = json.load(file)
        self.http_port, self.group_port = ports["http_port"], ports["group_port"]
        self.probe_port = ports.get("admin_port", self.http_port)

    def restart_coordinator(self):
        """Restarts it on the same ports, as after a crash."""
        self.coordinator.kill()
        self.coordinator.wait(20)
        os.remove(self._ports_path)
        self._start_coordinator()

    def _start(self, name, command):
        log = open(os.path.join(self.directory.name, f"{name}.log"), "ab")
        # Ranks share the cores, so waiting threads must not spin away each other's time. A session of
        # its own makes a test's signals reach only the intended processes.
        environment = dict(os.environ, GOMP_SPINCOUNT="1000")
        with log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                                    start_new_session=True)

    def _group_address(self):
        return f"{self.coordinator_name or self.address}:{self.group_port}"

    def start_group(self, *options, tp=2, cp=1, sigkill_timeout_s=4, wait=True):
        """Starts mpirun with a grid of ranks. Returns once the coordinator takes prompts for them, or at once without `wait`.
        `options` are alternating names and values."""
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(tp * cp), "--mca", "pml", "ob1", "--mca", "btl",
                   self.byte_transfer_layers, "--mca", "btl_vader_backing_directory", self.shared_memory.name,
                   "--mca", "orte_tmpdir_base", self.sessions,
                   "--mca", "odls_base_sigkill_timeout", str(sigkill_timeout_s), *self.mpirun_options]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        # Ranks do not print through mpirun, which drops their output once it has received SIGTERM.
        ranks_log = os.path.join(self.directory.name, "ranks.log")
        command += ["sh", "-c", f"exec \"$0\" \"$@\" {self.rank_options} >>'{ranks_log}' 2>&1"]
        settings = {"--model": MODEL_DIR, "--tp": tp, "--cp": cp, "--coordinator": self._group_address(),
                    "--device-pool": "8MiB", "--host-pool": "512MiB", "--head-plan": "dense", "--crossover-tokens": 0,
                    "--drain-timeout-s": 2, **dict(zip(self._group_options[::2], self._group_options[1::2], strict=True)),
                    **dict(zip(options[::2], options[1::2], strict=True))}
        command.append(os.path.join(BIN_DIR, "millrace-worker"))
        command += [str(word) for setting in settings.items() for word in setting]
        group = self._start("group", command)
        self.groups.append(group)
        if wait:
            def is_ready():
                assert group.poll() is None, f"the group ended with status {group.returncode}"
                return self.ready()
            wait_until("a ready group", is_ready, PATIENCE_S)
        return group

    def ranks(self, group_name=None):
        """{rank: process id} of this service's ranks, or of one group's, whether or not their mpirun still runs."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().decode(errors="replace").split("\0")
                if not words[0].endswith("millrace-worker") or self._group_address() not in words:
                    continue
                if group_name is not None and f"--group-name\0{group_name}\0" not in "\0".join(words):
                    continue
                with open(f"/proc/{pid}/environ", "rb") as file:
                    variables = dict(entry.partition("=")[::2] for entry in file.read().decode(errors="replace").split("\0"))
                # The environment of a process that just died reads as empty.
                if alive(pid) and "OMPI_COMM_WORLD_RANK" in variables:
                    found[int(variables["OMPI_COMM_WORLD_RANK"])] = int(pid)
        return found

    def job_records(self):
        """The job records (comm/mpi/job_record.h) of the ranks of all groups that this service ever had, on any host."""
        found = []
        for path in glob.glob(f"/dev/shm/millrace-job.{os.geteuid()}.*"):
            with contextlib.suppress(OSError), open(path) as file:
                if self.sessions in file.read():
                    found.append(path)
        return found

    def kill_rank(self, rank):
        os.kill(self.ranks()[rank], signal.SIGKILL)

    def connection(self, timeout_s, port=None):
        """A connection to the port for clients, or to another port."""
        return http.client.HTTPConnection(self.address, port or self.http_port, timeout=timeout_s)

    def request(self, method, path, body=None, timeout_s=PATIENCE_S):
        """(status, headers, parsed JSON or text). `body`: JSON text, or an object to convert to JSON."""
        if body is not None and not isinstance(body, str):
            body = json.dumps(body)
        connection = self.connection(timeout_s)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
            is_json = response.headers.get("Content-Type", "").startswith("application/json")
            return response.status, response.headers, json.loads(text) if is_json else text

    def ready(self):
        with contextlib.closing(self.connection(10, self.probe_port)) as connection:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200

    def get(self, path):
        return self.request("GET", path, timeout_s=10)

    def prefill(self, prompt, **fields):
        return self.request("POST", "/v1/prefill", self.prefill_body(prompt, **fields))

    @staticmethod
    def prefill_body(prompt, **fields):
        """The body for a prompt that bypasses the cache by default, because tests send the same prompts over and over."""
        return {"model": "fixture", "prompt_token_ids": prompt["prompt_token_ids"], "lease_ms": 60000, "cache": "off", **fields}

    def prefill_events(self, prompt, **fields):
        """Yields the server-sent events of a streamed request as they arrive: (name, data)."""
        connection = self.connection(PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/prefill", json.dumps(self.prefill_body(prompt, stream=True, **fields)),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            name = None
            while line := response.readline():
                key, _, value = line.decode().rstrip("\r\n").partition(": ")
                if key == "event":
                    name = value
                elif key == "data":
                    yield name, json.loads(value)

    def unread_by_groups(self):
        """Bytes that the coordinator has sent to a group and that the group has not read yet; the maximum over all connections."""
        with open("/proc/net/tcp") as file:
            fields = [line.split() for line in file.readlines()[1:]]
        return max((int(field[4].split(":")[1], 16) for field in fields
                    if int(field[2].rsplit(":", 1)[1], 16) == self.group_port and field[3] == "01"), default=0)

    def layers_done(self, request_id):
        """The number of layers done of a running request, else -1."""
        status, _, body = self.get(f"/v1/prefill/{request_id}")
        return body["progress"]["layers_done"] if status == 200 and body["status"] == "running" else -1

    def wait_for_layers(self, request_id, count=1):
        def started():
            status, _, body = self.get(f"/v1/prefill/{request_id}")
            assert "error" not in body or status == 404, body
            return status == 200 and body.get("progress", {}).get("layers_done", 0) >= count
        wait_until(f"layer {count} of {request_id}", started, PATIENCE_S)

    def hold_in_layer(self, rank, prompt, layers_done, **fields):
        """Posts a request in the background and stops the rank once exactly `layers_done` layers are done, so that it gets no further.
        Returns the request's id and the post."""
        pid = self.ranks()[rank]
        for _ in range(20):
            request_id = f"held-{time.monotonic_ns()}"
            post = InBackground(lambda: self.prefill(prompt, request_id=request_id, **fields))
            # The request may be finished before the test looks.
            wait_until(f"layer {layers_done} of {request_id}", lambda: post.ended_at or self.layers_done(request_id) >= layers_done, PATIENCE_S)
            stop(pid)
            if self.layers_done(request_id) == layers_done:
                return request_id, post
            os.kill(pid, signal.SIGCONT)
            post.wait(PATIENCE_S)
        raise AssertionError(f"no request was found with {layers_done} layers done")

    def decode(self, response, *options, model=MODEL_DIR, max_tokens=4, **environment):
        """(exit status, output or error text) of millrace-decode for a prefill response."""
        path = os.path.join(self.directory.name, "response.json")
        with open(path, "w") as file:
            json.dump(response, file)
        done = subprocess.run([*self.decode_command, "--manifest", path, "--model", model, "--max-tokens", str(max_tokens), *options],
                              capture_output=True, timeout=PATIENCE_S, text=True, env=dict(os.environ, **environment))
        return done.returncode, json.loads(done.stdout) if done.returncode == 0 else done.stderr

    def wait_for_log(self, pattern):
        """Waits until the logs have a match of `pattern` within a line, and returns the line. Programs write their logs on threads of their own, so
        a line may come after what it is about."""
        matcher = re.compile(pattern)

        def line():
            for path in sorted(glob.glob(os.path.join(self.directory.name, "*.log"))):
                with open(path, errors="replace") as file:
                    found = next(filter(matcher.search, file), None)
                if found and found.endswith("\n"):
                    return found.rstrip("\n")
            return None
        return wait_until(f"{pattern!r} in the logs", line, PATIENCE_S)

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.directory.name)):
            if name.endswith(".log"):
                with open(os.path.join(self.directory.name, name), errors="replace") as file:
                    text += f"--- {name}\n" + "".join(file.readlines()[-40:])
        return text

    def close(self):
        """Kills everything. Tests that want an orderly end ask for it themselves."""
        for process in [*self.groups, self.coordinator]:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)
        for pid in self.ranks().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until("the end of all ranks", lambda: not self.ranks(), 20)
        for path in self.job_records():
            os.remove(path)
        self.directory.cleanup()
        self.shared_memory.cleanup()
        atexit.unregister(self.close)


class ServiceTestCase(unittest.TestCase):
    def show_logs_of_failure(self, service):
        result = getattr(self._outcome, "result", None)
        if result and any(test is self for test, _ in result.errors + result.failures):
            print(service.logs(), flush=True)
