# SPDX-License-Identifier: Apache-2.0
"""Kills a Millrace group over and over while requests run, and starts another each time."""
import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter

_POLL_S = 0.02
# A prefill of a few thousand tokens takes seconds. Its beginning, and the last pull after its end, take a fraction of a second.
_MOMENTS = {"while a group starts": (0, 1.5), "as the first prefill begins": (0, 0.3), "between two prefills": (0, 0.3),
            "within a prefill": (0.3, 5), "idle": (0, 0.3)}
_TARGETS = "one rank", "mpirun", "mpirun and all ranks"


class GroupKiller:
    """Waits for a moment, kills the group and starts another, `kills` times. `quiet(True)` has to stop new requests and return once none is in
    flight; `quiet(False)` lets them continue. join() returns after the last kill, once a group takes prompts."""

    def __init__(self, service, group, start_group, kills, quiet, seed=1):
        self.moments, self.targets, self.stayed = Counter(), Counter(), 0
        self._service, self._group, self._start_group, self._quiet = service, group, start_group, quiet
        self._numbers = random.Random(seed)
        # Each moment and each target equally often, in random order.
        self._plan = [(list(_MOMENTS)[n % len(_MOMENTS)], _TARGETS[n // len(_MOMENTS) % len(_TARGETS)]) for n in range(kills)]
        self._numbers.shuffle(self._plan)
        self._failure, self._stopped = None, False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        """Stops after the next kill."""
        self._stopped = True

    def done(self):
        return not self._thread.is_alive()

    def join(self, timeout_s):
        self._thread.join(timeout_s)
        if self._failure:
            raise self._failure
        assert self.done(), f"{sum(self.moments.values())} kills within {timeout_s} s"

    def _metric(self, name):
        text = self._service.get("/metrics")[2]
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)

    def _wait(self, what, condition, timeout_s=300):
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
            time.sleep(_POLL_S)

    def _ready(self):
        return self._service.get("/ready")[0] == 200

    def _wait_for(self, moment):
        if moment == "while a group starts":
            self._wait("ranks", self._service.ranks)
        else:
            self._wait("a ready group", self._ready)
        if moment == "idle":
            self._quiet(True)
        elif moment in ("between two prefills", "within a prefill"):
            ended = self._metric("millrace_prefill_requests_total")
            self._wait("the end of a prefill", lambda: self._metric("millrace_prefill_requests_total") != ended)
        time.sleep(self._numbers.uniform(*_MOMENTS[moment]))

    def _kill(self, target):
        ranks = list(self._service.ranks().values())
        victims = [self._numbers.choice(ranks)] if target == "one rank" and ranks else [self._group.pid]
        if target == "mpirun and all ranks":
            victims += ranks
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _run(self):
        try:
            for moment, target in self._plan:
                if self._stopped:
                    break
                self._wait_for(moment)
                self._kill(target)
                self.moments[moment] += 1
                self.targets[target] += 1
                if moment == "idle":
                    self._quiet(False)
                self._clear()
                self._group = self._start_group()
            self._wait("a ready group", self._ready)
        except Exception as failure:
            self._failure = failure

    def _clear(self):
        """Waits for the rest of the group to end by itself. If it does not, counts it and kills what is left."""
        try:
            self._wait("the end of a group", lambda: self._group.poll() is not None and not self._service.ranks(), 60)
        except AssertionError:
            self.stayed += 1
            self._group.kill()
            for pid in self._service.ranks().values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._wait("the end of a killed group", lambda: self._group.poll() is not None and not self._service.ranks(), 60)
