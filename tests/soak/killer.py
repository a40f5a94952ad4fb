# SPDX-License-Identifier: Apache-2.0
"""Kills one part of a group in a chosen phase, and measures the time until the client of the request that ran there has its
answer."""
import http.client
import os
import signal
import sys
import time

from service import alive, wait_until

PHASES = "starting", "idle", "queued", "layer 0", "a middle layer", "last layer", "after the result"
VICTIMS = "rank 0", "another rank", "mpirun"
# For a busy machine. The assertion is only that there is an answer; the table says how late it is.
ANSWER_S = 60
START_S = 900  # while other processes have priority
SLOW_START_S = 15  # a start that takes longer is logged


class Killer:
    """start() starts a new group and returns without waiting for it. `name` is its --group-name, and `model` the model that it
    serves. lives[name] grows before each kill and when all ranks are gone."""

    def __init__(self, service, name, model, start, prompts, faults, draw, lives):
        self.service, self.name, self.model, self._start = service, name, model, start
        self.prompts, self.faults, self.draw, self.lives = prompts, faults, draw, lives
        self.group = None
        self.times = {}  # (victim, phase): seconds until the client's answer; None where no request ran
        self.back = []  # seconds from the start of mpirun until its group served
        self._started_at = 0.0
        self._waited_for = None  # the group that was seen to serve

    def ranks(self):
        return self.service.ranks(self.name)

    def restart(self):
        """Starts the group again once all of its processes are gone, as a supervisor does."""
        if self.group is not None:
            self.group.wait(60)
        wait_until(f"the end of the ranks of {self.name}", lambda: not self.ranks(), 60)
        self.lives[self.name] += 1  # ranks outlive mpirun by a second and still serve
        wait_until(f"the coordinator to miss {self.name}", lambda: not self._is_served(), 60)
        self.group = self._start()
        self._started_at = time.monotonic()

    def wait_until_it_serves(self):
        wait_until(f"group {self.name}", self._is_served, START_S)
        if self._waited_for is self.group:
            return
        self._waited_for = self.group
        self.back.append(time.monotonic() - self._started_at)
        if self.back[-1] > SLOW_START_S:
            print(f"{time.strftime('%H:%M:%S')} {self.name} served after {self.back[-1]:.1f} s", file=sys.stderr, flush=True)

    def _is_served(self):
        return any(model["id"] == self.model for model in self.service.get("/v1/models")[2]["data"])

    def kill_once(self):
        victim, phase = self.draw.choice(VICTIMS), self.draw.choice(PHASES)
        self.times.setdefault((victim, phase), [])
        if phase == "starting":
            ranks = wait_until("ranks", lambda: len(found := self.ranks()) == 4 and found, 60)
            # The kill comes at any time from the first instruction to serving.
            time.sleep(self.draw.uniform(0, 1))
            took = None
            self._kill(victim, ranks)
        elif phase == "idle":
            self.wait_until_it_serves()
            took = None
            self._kill(victim, self.ranks())
        else:
            self.wait_until_it_serves()
            took = self._kill_under_a_request(victim, phase)
        if took is not False:
            self.times[victim, phase].append(took)
        self.restart()

    def _kill(self, victim, ranks):
        self.lives[self.name] += 1
        if victim == "mpirun":
            self.group.kill()
            return
        rank = 0 if victim == "rank 0" else self.draw.choice([rank for rank in ranks if rank != 0] or [0])
        if rank in ranks and alive(ranks[rank]):
            os.kill(ranks[rank], signal.SIGKILL)

    def _kill_under_a_request(self, victim, phase):
        """Seconds to the answer; None if it came before the kill; False if the request never reached the phase."""
        prompt = self.draw.choice(self.prompts)
        ranks = self.ranks()
        killed_at = None
        last = None
        try:
            for name, data in self.service.prefill_events(prompt, model=self.model, lease_ms=1000):
                last = name, data
                if killed_at is None and self._is_reached(phase, name, data):
                    self._kill(victim, ranks)
                    killed_at = time.monotonic()
        except (OSError, http.client.HTTPException, AssertionError) as error:
            last = "refused", str(error)
        took = time.monotonic() - killed_at if killed_at else None
        if killed_at is None:  # the request was refused or its group ended before; the kill still comes
            self._kill(victim, ranks)
            return False
        if took > ANSWER_S:
            self.faults.add("hung", f"{victim} killed in {phase}: answer after {took:.1f} s: {last}")
        if last[0] == "done":
            if last[1]["first_token_id"] != prompt["answer_token_ids"][0]:
                self.faults.add("wrong", f"{victim} killed in {phase}: {last[1]['first_token_id']}")
            return None if phase == "after the result" else took
        if last[0] != "error" or not last[1]["error"]["retriable"]:
            self.faults.add("wrong", f"{victim} killed in {phase}: the last event is {last}")
        return took

    @staticmethod
    def _is_reached(phase, name, data):
        if name == "layer":
            return {"a middle layer": data["layer"] == 1, "last layer": data["layer"] == data["num_layers"] - 2}.get(phase, False)
        return name == {"queued": "queued", "layer 0": "started", "after the result": "done"}.get(phase)
