# SPDX-License-Identifier: Apache-2.0
"""The soak itself: what runs concurrently, what is checked, and the table. See run."""
import collections
import http.client
import os
import random
import signal
import statistics
import sys
import threading
import time

import observed
from clients import Clients
from killer import START_S, Killer
from measured_on import measured_on
from service import MODEL_DIR, Service, make_prompt, wait_until

# A process may hold this much more anonymous memory at the end than after its first requests. The C library has one arena per
# thread, which is reused and not returned. A leak of 10 KiB per request exceeds this limit within an hour.
GROWTH_LIMIT = 32 << 20
COUNTED = ("millrace_preemptions_total", "millrace_side_by_side_total", "millrace_prefix_cache_hit_tokens_total", "millrace_prefix_cache_evictions_total", "millrace_kv_evictions_total")


class Faults:
    def __init__(self):
        self.found = []
        self._lock = threading.Lock()

    def add(self, kind, text):
        with self._lock:
            self.found.append((kind, text))
        print(f"{time.strftime('%H:%M:%S')} {kind}: {text}", file=sys.stderr, flush=True)

    def count(self, kind):
        return sum(found == kind for found, _ in self.found)


class Soak:
    def __init__(self, seconds, num_clients, seed):
        self.length, self.num_clients, self.seed = seconds, num_clients, seed
        self.faults = Faults()
        self.service = self.make_service()
        self.models = {name: os.path.join(self.service.directory.name, f"model-{name}") for name in ("steady", "doomed")}
        for path in self.models.values():
            os.symlink(MODEL_DIR, path)
        self.disk = os.path.join(self.service.directory.name, "disk")
        self.lives = collections.Counter()
        self.outcomes = collections.Counter()
        self.coordinator_kills = []  # seconds until the client saw its connection end
        self.coordinator_back = []  # seconds from its restart until both groups had returned
        self.samples = {}
        self.most = collections.Counter()  # the largest value seen of each metric
        self.pids = set()  # of all ranks seen
        self.stop = threading.Event()

    # What a longer soak adds to: see everything.py.
    kills_coordinator = True

    def make_service(self):
        return Service()

    def group_options(self, name):
        return {}

    def make_prompts(self):
        for seed, tokens in enumerate((320, 450, 640, 777, 1024, 1500, 2048, 3000)):
            yield make_prompt(tokens, seed=100 + seed)

    def make_clients(self, name, draw, lives, number):
        return Clients(self.service, f"model-{name}", self.prompts, self.faults, draw, lives)

    def begin(self):
        """What else runs, each on a thread."""
        return []

    def before_client(self, draw):
        pass

    def between_kills(self, killer):
        pass

    def at_quiet(self):
        pass

    def counted(self):
        return COUNTED

    def more_of_report(self):
        return []

    def close(self):
        pass

    def start_group(self, name, **grid):
        # There is room for a few prompts only, so the records of all pages and the device, host and disk tiers are full most of the time.
        options = {"--model": self.models[name], "--group-name": name, "--threads": 1, "--host-pool": "24MiB", "--device-pool": "4MiB",
                   "--disk-pool": "32MiB", "--disk-directory": os.path.join(self.disk, name), "--layer-timeout-s": 60, **self.group_options(name)}
        return self.service.start_group(*(word for option in options.items() for word in option), wait=False, **grid)

    def known_prompts(self):
        """Prompts that the model answers correctly under each plan used, so that later wrong answers are the service's faults."""
        prompts = []
        for prompt in self.make_prompts():
            answers = []
            for plan in "dense", "adaptive":
                status, _, body = self.service.prefill(prompt, model="model-steady", head_plan=plan, lease_ms=1)
                assert status == 200, body
                answers.append(body["first_token_id"])
            status, _, body = self.service.prefill(prompt, model="model-steady", lease_ms=10000)
            code, decoded = self.service.decode(body, "--any-weights")
            assert code == 0, decoded
            if answers == [prompt["answer_token_ids"][0]] * 2 and decoded["generated_token_ids"] == prompt["answer_token_ids"]:
                prompts.append(prompt)
        assert len(prompts) >= 3, "the fixture answers too few of these prompts right"
        return prompts

    def long_lived(self):
        pids = {"coordinator": self.service.coordinator.pid, "mpirun of steady": self.steady.pid}
        return pids | {f"rank {rank} of steady": pid for rank, pid in self.service.ranks("steady").items()}

    def sample(self):
        for name, pid in self.long_lived().items():
            if seen := observed.of_process(pid):
                self.samples.setdefault((name, pid), []).append(seen)

    @staticmethod
    def values(text, name):
        """{labels: value} of a metric."""
        return {line.rsplit(" ", 1)[0].removeprefix(name): float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                if line.startswith(name + "{") or line.startswith(name + " ")}

    def sampled_metric(self, name):
        return sum(self.values(self.service.get("/metrics")[2], name).values())

    def watch_budgets(self):
        """Checks twice a second that no tier of any group holds more than it may, whatever is being killed."""
        while not self.stop.wait(0.5):
            try:
                text = self.service.get("/metrics")[2]
            except (OSError, http.client.HTTPException):
                continue  # the coordinator is being killed
            capacity = self.values(text, "millrace_kv_pool_capacity_bytes")
            for pool, used in self.values(text, "millrace_kv_pool_used_bytes").items():
                if used > capacity[pool]:
                    self.faults.add("wrong", f"pool {pool} has {used:.0f} bytes in use, of {capacity[pool]:.0f}")
                self.most[f"filled {pool}"] = max(self.most[f"filled {pool}"], round(100 * used / capacity[pool]))
            for name in self.counted():
                self.most[name] = max(self.most[name], int(sum(self.values(text, name).values())))

    def quiet(self):
        """Waits until nothing runs, waits or is leased, and the pools hold only what is cached."""
        names = ("millrace_queued_requests", "millrace_running_requests", "millrace_active_leases", "millrace_leases")
        def is_quiet():
            return (all(self.sampled_metric(name) == 0 for name in names) and
                    self.sampled_metric("millrace_kv_pool_used_bytes") == self.sampled_metric("millrace_prefix_cache_bytes"))
        wait_until("the end of all leases", is_quiet, START_S)

    def client(self, number):
        draw = random.Random(f"{self.seed}-{number}")
        by_model = {name: self.make_clients(name, draw, lambda name=name: (self.lives["coordinator"], self.lives[name]), number)
                    for name in ("steady", "doomed")}
        while not self.stop.is_set():
            if not Clients.coordinator_lives((self.lives["coordinator"],)):
                time.sleep(0.05)
                continue
            self.before_client(draw)
            kind, outcome = by_model[draw.choice(["steady", "steady", "doomed"])].one()
            self.outcomes[kind, str(outcome)] += 1
        for clients in by_model.values():
            try:
                clients.give_back()
            except OSError as error:
                self.faults.add("wrong", f"giving back: {error!r}")

    def guarded(self, call, *values):
        try:
            call(*values)
        except Exception as error:  # an error of the soak itself or of the service: either way not a pass
            self.faults.add("wrong", f"{call.__name__}: {type(error).__name__}: {error}")
            self.stop.set()

    def kill_coordinator(self):
        """Kills the coordinator while a request runs: the client's connection ends, and the groups come back with their leases."""
        events = self.service.prefill_events(self.prompts[-1], model="model-steady", lease_ms=1000)
        killed_at = None
        try:
            for name, _ in events:
                if name == "started":
                    self.lives["coordinator"] += 1
                    killed_at = time.monotonic()
                    self.service.coordinator.kill()
        except (OSError, http.client.HTTPException):
            pass
        if killed_at is None:
            return
        self.coordinator_kills.append(time.monotonic() - killed_at)
        self.service.restart_coordinator()
        restarted_at = time.monotonic()
        wait_until("both groups", lambda: len(self.service.get("/v1/models")[2].get("data", [])) == 2, START_S)
        self.coordinator_back.append(time.monotonic() - restarted_at)
        # Until both groups are back, the coordinator may know one model and take the other for a wrong name.
        self.lives["coordinator"] += 1

    def run(self):
        """Runs the soak and returns the table."""
        self.roots = self.service.shared_memory.name, self.service.sessions, self.disk
        self.steady = self.start_group("steady", cp=2, tp=1)
        wait_until("group steady", self.service.ready, START_S)
        self.prompts = self.known_prompts()
        killer = Killer(self.service, "doomed", "model-doomed", lambda: self.start_group("doomed", tp=2, cp=2), self.prompts, self.faults,
                        random.Random(self.seed), self.lives)
        killer.restart()
        killer.wait_until_it_serves()
        self.files_before = observed.files_below(*self.roots)
        others = self.begin()
        begin = time.monotonic()
        threads = [threading.Thread(target=self.guarded, args=(self.client, number)) for number in range(self.num_clients)]
        threads += [threading.Thread(target=self.guarded, args=(call,)) for call in (self.watch_budgets, *others)]
        for thread in threads:
            thread.start()
        self.guarded(self.kills, killer, begin)
        self.stop.set()
        for thread in threads:
            thread.join()
        self.seconds = time.monotonic() - begin
        self.guarded(self.end, killer)
        return self.report(killer)

    def kills(self, killer, begin):
        length = self.length
        warm_at, coordinator_at = begin + min(60, length / 6), begin + length * 5 / 6
        next_sample = warm_at
        while time.monotonic() < begin + length and not self.stop.is_set():
            self.pids |= set(self.service.ranks().values())
            self.between_kills(killer)
            killer.kill_once()
            if time.monotonic() >= next_sample:
                self.sample()
                next_sample += max(5, length / 120)
            if self.kills_coordinator and time.monotonic() >= coordinator_at:
                killer.wait_until_it_serves()
                self.kill_coordinator()

    def end(self, killer):
        killer.wait_until_it_serves()
        self.quiet()
        self.sample()
        self.at_quiet()
        files = observed.files_below(*self.roots)
        # Running groups have as many files as they had at the beginning, and there are no other files.
        if len(files) != len(self.files_before):
            self.faults.add("left behind", f"{len(files)} files of groups, {len(self.files_before)} at the beginning: {sorted(files)}")
        for group in self.steady, killer.group:
            group.send_signal(signal.SIGUSR1)
        for name, group in ("steady", self.steady), ("doomed", killer.group):
            if group.wait(120) != 0:
                self.faults.add("wrong", f"{name} drained with status {group.returncode}")
        self.service.coordinator.send_signal(signal.SIGTERM)
        if self.service.coordinator.wait(60) != 0:
            self.faults.add("wrong", f"the coordinator ended with status {self.service.coordinator.returncode}")
        left = list(observed.files_below(*self.roots)) + self.service.job_records() + list(self.service.ranks().values())
        left += observed.system_v_segments(self.pids)
        for what in left:
            self.faults.add("left behind", str(what))

    def growth(self):
        rows = []
        for (name, pid), samples in self.samples.items():
            first, last = samples[0], samples[-1]
            middle = samples[len(samples) // 2]
            grown = last["anonymous"] - first["anonymous"]
            rows.append([name, len(samples), *(f"{seen['anonymous'] / (1 << 20):.1f}" for seen in (first, middle, last)),
                         f"{max(seen['anonymous'] for seen in samples) / (1 << 20):.1f}", f"{first['descriptors']} / {last['descriptors']}",
                         f"{first['threads']} / {last['threads']}"])
            if grown > GROWTH_LIMIT:
                self.faults.add("left behind", f"{name} (pid {pid}) grew by {grown >> 20} MiB")
            # The last sample is of a quiet service. The earlier ones have clients, but a group may be missing in one or two of them.
            if len(samples) > 3 and last["descriptors"] > max(seen["descriptors"] for seen in samples[:-1]):
                self.faults.add("left behind", f"{name} (pid {pid}) has {last['descriptors']} descriptors")
        return rows

    @staticmethod
    def summary(times):
        """Number, median, 99th percentile and maximum, as text."""
        if not times:
            return 0, "-", "-", "-"
        times = sorted(times)
        return len(times), *(f"{took:.2f}" for took in (statistics.median(times), times[int(len(times) * 0.99)], times[-1]))

    def report(self, killer):
        growth = self.growth()
        for group in ("steady", "doomed"):
            if not any(name.startswith(f'filled {{group="{group}"') for name in self.most):
                self.faults.add("wrong", f"the pools of {group} were never seen")
        kills = sum(map(len, killer.times.values())) + len(self.coordinator_kills)
        lines = [f"{key:10}{value}" for key, value in measured_on().items()]
        lines += [f"{'seconds':10}{self.seconds:.0f}", f"{'kills':10}{kills}",
                  f"{'requests':10}{sum(self.outcomes.values())}, besides those of kills",
                  f"{'faults':10}{self.faults.count('hung')} hung, {self.faults.count('wrong')} wrong, {self.faults.count('left behind')} left behind", "",
                  "Kills, and seconds from the kill to the answer of the client whose request ran:", ""]
        rows = []
        for (victim, phase), times in sorted(killer.times.items()):
            rows.append([victim, phase, len(times), *self.summary([took for took in times if took is not None])])
        if self.kills_coordinator:
            rows.append(["coordinator", "layer 0", len(self.coordinator_kills), *self.summary(self.coordinator_kills)])
        lines += [observed.table(["killed", "while", "kills", "answers", "median", "99 %", "most"], rows), ""]
        lines += [f"A new group served {statistics.median(killer.back):.1f} s after its start (median), {max(killer.back):.1f} s at most."]
        if self.coordinator_back:
            lines += [f"Both groups had returned {statistics.median(self.coordinator_back):.1f} s after the coordinator's restart (median), "
                      f"{max(self.coordinator_back):.1f} s at most."]
        lines += [""]
        lines += ["Anonymous memory, MiB, descriptors and threads of processes that were not killed, first after the first minute, last when",
                  "nothing ran and no lease was held:", ""]
        lines += [observed.table(["process", "samples", "first", "middle", "last", "most", "descriptors", "threads"], growth), ""]
        lines += self.more_of_report()
        lines += ["Pools of groups at their fullest, %, and the largest value of counters, which begin again with a group and with the coordinator:", ""]
        lines += [observed.table(["what", "most"], sorted(self.most.items())), ""]
        lines += ["What became of the clients' requests:", ""]
        lines += [observed.table(["client", "outcome", "requests"], [[*key, count] for key, count in sorted(self.outcomes.items())])]
        lines += ["", *(f"{kind}: {text}" for kind, text in self.faults.found)]
        text = "\n".join(lines).rstrip() + "\n"
        return text
