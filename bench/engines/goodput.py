#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goodput on equal GPUs: vLLM alone on all of them, against a Millrace group on some and vLLM on the others.

    bench/engines/goodput.py --bin build/release/bin [--group-gpus 0 --vllm-gpus 1] [--model llama-3-8b|fixture] [--loads 0.2 0.4 0.6] [--seconds 60]
        [--drain-s 20] [--tokens 16384 131072] [--answer-tokens 200] [--batched-tokens 512 2048 8192] [--search-seconds 40] [--systems alone millrace]
        [--first-s 5] [--gap-ms 50] [--vllm-tp 1] [--tp 1] [--cp 1] [--head-plan auto] [--connector '{}'] [--options "..."] [--first-token TOKENS ...]
        [--seed 1] [--limit-s S] [--json FILE] [--output FILE]

`alone`: a replica of vLLM on every --vllm-tp of all these GPUs, without the connector. `millrace`: a group on --group-gpus, and replicas on --vllm-gpus
whose prompts it prefills. On a CPU: two replicas; a group and one. Prompts arrive by a Poisson process at each of --loads (prompts a second, of the
whole system) for --seconds, whether earlier ones are answered or not, with lengths log-uniform within --tokens; both systems get the same prompts at
the same times. Among replicas, a prompt goes to the one with the fewest tokens that wait. Prompts that are not answered --drain-s after the last could
arrive are aborted.

--batched-tokens: with more than one value, vLLM alone first gets the middle load with each value of max_num_batched_tokens for --search-seconds: each
replica another value, with the same prompts at its share of the load. The value of most prompts within the objective (by the mean of their gaps; then
by 99 % of them; then by the median time to the first token) is taken for everything that follows, the replicas beside a group included.

A prompt meets the objective if its first token comes within --first-s of its arrival, and the mean time between its tokens is at most --gap-ms
(goodput), or 99 % of its times between tokens are (steady goodput). `fixture`: the model of the tests; the first tokens of each answer must be right,
or it counts as missed. `llama-3-8b`: an 8B shape with random weights on both sides.

--first-token: the rows of first_token.py as well, measured while `millrace` is idle. --connector: options of the connector. --options: more for vLLM's
servers. --limit-s: what could not end by then is not begun. Each load's figures are printed when it ends. --json: all figures, those of every prompt
included. Exit status 1 for a wrong answer, an error, or something that was not begun. Needs the Python of first_token.py."""
import argparse
import concurrent.futures
import json
import math
import os
import shlex
import signal
import sys
import tempfile
import time

import engine_gpus

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DIGITS = 4
CPU_REPLICAS = 2
# What a start and a warm-up take at least.
LEAST_START_S = 30


class System:
    """Replicas of vLLM, and a group or none. Starts on entry; leaves nothing running."""

    def __init__(self, arguments, name, batched_tokens, directory):
        """`batched_tokens`: one value for each replica of vLLM."""
        self.name, self.service, self.servers = name, None, []
        self._arguments, self._batched_tokens, self._directory = arguments, batched_tokens, directory

    def __enter__(self):
        from first_token import write_shape
        from openai_server import PATIENCE_S, OpenAIServer
        from service import MODEL_DIR, Service, free_ports, wait_until
        arguments, is_fixture = self._arguments, self._arguments.model == "fixture"
        model = MODEL_DIR if is_fixture else write_shape(arguments.model, self._directory)
        options = ["--no-enable-prefix-caching", "--max-num-seqs", arguments.max_num_seqs, *([] if is_fixture else ["--load-format", "dummy"]),
                   *shlex.split(arguments.options)]
        try:
            coordinator = None
            if self.name == "millrace":
                self.service = Service()
                coordinator = f"127.0.0.1:{self.service.http_port}"
                self.service.start_group(*engine_gpus.group_options(self.service, arguments),
                                         "--model", MODEL_DIR if is_fixture else f"synthetic:{arguments.model}", "--dtype", "bfloat16",
                                         "--head-plan", arguments.head_plan, "--crossover-tokens", -1, tp=arguments.tp, cp=arguments.cp, wait=False)
            port = free_ports(len(self._batched_tokens))
            for replica, (gpus, batched_tokens) in enumerate(zip(replica_gpus(arguments, self.name), self._batched_tokens, strict=True)):
                self.servers.append(OpenAIServer(
                    model, coordinator, port + replica, f"{arguments.log}.{self.name}.{replica}", arguments.vllm_tp, arguments.connector,
                    ["--max-num-batched-tokens", batched_tokens, *options], gpus=gpus,
                    max_model_len=arguments.longest_tokens + arguments.answer_tokens + 64))
            wait_until("vLLM's servers and the group", self._is_ready, PATIENCE_S)
            return self
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def _is_ready(self):
        """Raises if something has ended instead."""
        for group in self.service.groups if self.service else ():
            if group.poll() is not None:
                raise RuntimeError(f"the group has ended with status {group.returncode}")
        servers_are_ready = all([server.ready() for server in self.servers])  # asks each, so that none that has ended goes unnoticed
        return servers_are_ready and (self.service is None or self.service.ready())

    def __exit__(self, kind, *_):
        if kind and self.service:
            print(self.service.logs(), file=sys.stderr)
        for server in self.servers:
            server.close()
        if self.service:
            self.service.close()

    def wait_at_rest(self):
        from service import wait_until
        for server in self.servers:
            wait_until("vLLM at rest", server.at_rest, 60)

    def counts(self):
        """Of all replicas, by name: prompts by what the connector did with them, and preemptions."""
        counts = {"preemptions": 0}
        for server in self.servers:
            for name, count in server.outcomes().items():
                counts[name] = counts.get(name, 0) + count
            counts["preemptions"] += int(server.metric("vllm:num_preemptions_total"))
        return counts


def replica_gpus(arguments, name):
    """CUDA_VISIBLE_DEVICES of each replica of a system."""
    if not arguments.vllm_gpus:
        return [""] * (CPU_REPLICAS if name == "alone" else CPU_REPLICAS - 1)
    gpus = [*(arguments.group_gpus.split(",") if name == "alone" and arguments.group_gpus else []), *arguments.vllm_gpus.split(",")]
    return [",".join(gpus[first:first + arguments.vllm_tp]) for first in range(0, len(gpus) - arguments.vllm_tp + 1, arguments.vllm_tp)]


class Prompts:
    """Makes prompts of given lengths: the same for the same number."""

    def __init__(self, model):
        self._model = model

    def make(self, num_tokens, number):
        """Returns {"prompt_token_ids", and "answer_token_ids" if it is known}."""
        from first_token import SHAPES, random_prompt
        from service import make_prompt
        if self._model == "fixture":
            return make_prompt(num_tokens, seed=10000 + number)
        return random_prompt(SHAPES[self._model]["vocab_size"], num_tokens, number)


class Goodput:
    def __init__(self, arguments, objective):
        self._arguments, self._objective = arguments, objective
        self._prompts = Prompts(arguments.model)
        self._began = time.monotonic()
        self.rows, self.first_token_rows, self.not_begun, self.had_errors = [], [], [], False

    def time_for(self, what, seconds):
        """Whether that much time is left; notes what is not begun."""
        if time.monotonic() - self._began + seconds <= self._arguments.limit_s:
            return True
        self.not_begun.append(what)
        return False

    def load_s(self, seconds):
        return seconds + self._arguments.drain_s

    def warm_up(self, system):
        """Sends prompts one after the other to each replica, so that nothing is done for the first time afterwards, and times are learnt."""
        from arrivals import log_middle
        least, most = self._arguments.tokens
        number = 9000
        for num_tokens in (least, log_middle(least, most), most):
            # The coordinator's times are learnt from several prompts; vLLM's own from one.
            for extra in ({"kv_transfer_params": {"millrace": False}}, {}, {}) if system.service else ({},):
                number += len(system.servers)
                prompts = [self._prompts.make(num_tokens, number + replica)["prompt_token_ids"] for replica in range(len(system.servers))]
                with concurrent.futures.ThreadPoolExecutor() as pool:
                    for status, said in pool.map(lambda server, prompt, extra=extra: server.complete(prompt, 2 * DIGITS, **extra), system.servers, prompts):
                        if status != 200:
                            raise RuntimeError(f"warm-up: {status} {said}")
        system.wait_at_rest()

    def play(self, replicas, load, seconds, number):
        """Sends the same load to each list of servers in `replicas`, at the same time. Returns the outcomes of each."""
        from arrivals import poisson_arrivals
        from open_loop import OpenLoop, run_together
        arguments = self._arguments
        arrivals = poisson_arrivals(load, seconds, arguments.tokens, arguments.seed)
        prompts = [self._prompts.make(arrival.num_tokens, 1000 * number + index) for index, arrival in enumerate(arrivals)]
        asks_ids = arguments.model == "fixture"
        bodies = [json.dumps({**replicas[0][0].body(prompt["prompt_token_ids"], arguments.answer_tokens), "stream": True, "return_token_ids": asks_ids,
                              "stream_options": {"include_usage": True, "continuous_usage_stats": True}}).encode() for prompt in prompts]
        loops = [OpenLoop([f"http://127.0.0.1:{server.port}" for server in servers], arrivals, bodies, arguments.answer_tokens) for servers in replicas]
        played = run_together(loops, self.load_s(seconds))
        for outcomes in played:
            for outcome, prompt in zip(outcomes, prompts, strict=True):
                expected = prompt.get("answer_token_ids")
                outcome.is_wrong = expected is not None and outcome.is_complete and outcome.tokens[:len(expected)] != expected
        return played

    def row(self, system, batched_tokens, load, outcomes, seconds, more):
        """Prints and keeps the figures of a load."""
        from open_loop import LATE
        errors = [outcome.error for outcome in outcomes if outcome.error and outcome.error != LATE]
        figures = {"system": system, "max_num_batched_tokens": batched_tokens, "load, 1/s": load, **self._objective.summary(outcomes, seconds),
                   "errors": len(errors), **more}
        self.had_errors = self.had_errors or bool(errors) or figures["wrong"] > 0
        print(json.dumps(figures), *errors[:3], flush=True)
        self.rows.append({**figures, "most seconds that the client was late": max((outcome.late_s for outcome in outcomes), default=0), "of each": [
            {"tokens": outcome.num_tokens, "at_s": round(outcome.at_s, 3), "replica": outcome.replica, "first_s": outcome.first_s and round(outcome.first_s, 4),
             "gaps_ms": [round(1000 * gap, 1) for gap in outcome.gaps_s], "error": outcome.error, "wrong": outcome.is_wrong} for outcome in outcomes]})
        return figures

    def search(self, directory):
        """Returns the best of --batched-tokens for vLLM alone, or the first if there is only one or no time."""
        arguments = self._arguments
        candidates = arguments.batched_tokens
        if len(candidates) == 1 or "alone" not in arguments.systems:
            return candidates[0]
        replicas = len(replica_gpus(arguments, "alone"))
        load = sorted(arguments.loads)[len(arguments.loads) // 2] / replicas
        found = []
        for first in range(0, len(candidates), replicas):
            values = candidates[first:first + replicas]
            if not self.time_for(f"search: {values}", LEAST_START_S + self.load_s(arguments.search_seconds)):
                continue
            # A replica without a value of its own repeats the last.
            with System(arguments, "alone", values + [values[-1]] * (replicas - len(values)), directory) as system:
                self.warm_up(system)
                played = self.play([[server] for server in system.servers[:len(values)]], load, arguments.search_seconds, 900)
                for value, outcomes in zip(values, played, strict=True):
                    found.append(self.row("alone, one replica, search", value, load, outcomes, arguments.search_seconds, {}))
        return best_setting(found) if found else candidates[0]

    def measure(self, name, batched_tokens, directory):
        """Plays every load on one system."""
        arguments = self._arguments
        if not self.time_for(name, LEAST_START_S + self.load_s(arguments.seconds)):
            return
        with System(arguments, name, [batched_tokens] * len(replica_gpus(arguments, name)), directory) as system:
            print(f"{name}: ready after {time.monotonic() - self._began:.0f} s", file=sys.stderr, flush=True)
            with_first_token = bool(system.service and arguments.first_token)
            if with_first_token:
                self.first_token(system)
            if not with_first_token or len(system.servers) > 1:  # the rows have warm-ups of their own
                self.warm_up(system)
            for number, load in enumerate(arguments.loads, 1):
                if not self.time_for(f"{name} at {load:g}/s", self.load_s(arguments.seconds)):
                    continue
                before = system.counts()
                [outcomes] = self.play([system.servers], load, arguments.seconds, number)
                system.wait_at_rest()
                counted = {what: count - before.get(what, 0) for what, count in system.counts().items()}
                self.row(name, batched_tokens, load, outcomes, arguments.seconds,
                         {"preemptions": counted.pop("preemptions"), "prompts by what the connector did": {what: n for what, n in counted.items() if n}})

    def first_token(self, system):
        import first_token
        measurement = first_token.Measurement(system.service, system.servers[0], lambda num_tokens, seed: self._prompts.make(num_tokens, 500000 + seed))
        for num_tokens in self._arguments.first_token:
            self.first_token_rows.append(measurement.row(num_tokens, repeats=2, warm_ups=4))
            print(json.dumps({"model": self._arguments.model, **self.first_token_rows[-1]}), flush=True)


def best_setting(rows):
    """max_num_batched_tokens of the best row of a search."""
    def merit(row):
        first_s = row["first token p50, s"]
        return row["goodput, 1/s"], row["steady goodput, 1/s"], -math.inf if first_s is None else -first_s
    return max(rows, key=merit)["max_num_batched_tokens"]


def table(rows, measured):
    text = "".join(f"- {name}: {value}\n" for name, value in measured.items()) + "\n"
    if not rows:
        return text
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text += "| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|\n"
    for row in rows:
        text += "| " + " | ".join(cell(row.get(name, "")) for name in columns) + " |\n"
    return text + "\n"


def cell(value):
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items())
    return "never" if value is None else str(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", default="llama-3-8b", choices=["fixture", "llama-3-8b"])
    parser.add_argument("--systems", nargs="+", default=["alone", "millrace"], choices=["alone", "millrace"])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.2, 0.4, 0.6])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--drain-s", type=float, default=20)
    parser.add_argument("--tokens", type=int, nargs=2, default=[16384, 131072])
    parser.add_argument("--answer-tokens", type=int, default=200)
    parser.add_argument("--batched-tokens", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--search-seconds", type=float, default=40)
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--first-s", type=float, default=5)
    parser.add_argument("--gap-ms", type=float, default=50)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--cp", type=int, default=1)
    parser.add_argument("--vllm-tp", type=int, default=1)
    parser.add_argument("--head-plan", default="auto")
    parser.add_argument("--connector", type=json.loads, default={})
    parser.add_argument("--options", default="")
    parser.add_argument("--first-token", type=int, nargs="+", default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    parser.add_argument("--commit", default="", help="what to state where git is not available")
    parser.add_argument("--log", default="/tmp/goodput.log", help="beginning of the names of vLLM's logs")
    parser.add_argument("--json")
    parser.add_argument("--output")
    engine_gpus.add_options(parser)
    arguments = parser.parse_args()
    arguments.longest_tokens = max(arguments.tokens[1], *arguments.first_token, 0)
    os.environ["MILLRACE_SOURCE_DIR"], os.environ["MILLRACE_BIN_DIR"] = ROOT, os.path.abspath(arguments.bin)
    # Waiting threads must not spin on cores that others need.
    os.environ.update(GOMP_SPINCOUNT="1000", UCX_MEM_MMAP_HOOK_MODE="none")
    sys.path[:0] = [os.path.join(ROOT, "tests/e2e"), os.path.join(ROOT, "bench")]
    from first_token import passed, vllm_version
    from measured_on import measured_on
    from objective import Objective

    measured = {**measured_on(arguments.commit), "date": time.strftime("%Y-%m-%d", time.gmtime()), "vLLM": vllm_version(),
                **engine_gpus.measured_on(arguments), "model": arguments.model,
                "objective": f"first token within {arguments.first_s:g} s, {arguments.gap_ms:g} ms between tokens",
                "prompts": f"{arguments.tokens[0]} to {arguments.tokens[1]} tokens, log-uniform; answers of {arguments.answer_tokens}"}
    goodput = Goodput(arguments, Objective(arguments.first_s, arguments.gap_ms / 1000))
    try:
        with tempfile.TemporaryDirectory(prefix="millrace-shape-") as directory:
            best = goodput.search(directory)
            for name in arguments.systems:
                goodput.measure(name, best, directory)
    finally:
        write(arguments, goodput, measured)
    return 1 if goodput.had_errors or goodput.not_begun or not all(map(passed, goodput.first_token_rows)) else 0


def write(arguments, goodput, measured):
    """Writes what there is, also after a failure."""
    if goodput.not_begun:
        measured["not begun"] = ", ".join(goodput.not_begun)
    text = table([{name: value for name, value in row.items() if name != "of each"} for row in goodput.rows], measured)
    print(text, flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"measured": measured, "rows": goodput.rows, "first token": goodput.first_token_rows}, file)
    if arguments.output:
        with open(arguments.output, "a") as file:
            file.write(text)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
