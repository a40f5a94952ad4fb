#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests vLLM's OpenAI server with MillraceConnector under load: right answers, vLLM's own counters, and the same while groups are killed.

    build/engines/venv/bin/python bench/engines/openai_campaign.py --bin build/release/bin [--prompts 100] [--concurrency 4] [--tokens 4096 16384]
        [--tp 1] [--groups 2x2 ...] [--head-plan dense] [--kv-cache-dtype auto ...] [--own] [--decode] [--kills 0 ...]
        [--restarts 0 ...] [--restart-within-s 3] [--aborts 0 ...] [--abort-within-s 30] [--blocks 0] [--answer-tokens 4]
        [--limit-s S] [--group-gpus 0 --vllm-gpus 1] [--options "..."] [--output FILE]

A coordinator, a group of the fixture model (TP x CP) and vLLM run as processes on this machine, on its CPU or on GPUs. Every prompt is sent once, as
token ids, to /v1/completions. --groups: grids to run one after the other with the same vLLM, each with --prompts; a grid may be named again, and
--kv-cache-dtype, --kills, --restarts and --aborts take one value for all grids, or one for each. --kv-cache-dtype: that of the group; vLLM's cache is
in bfloat16. --own: compares with vLLM's own prefill of the first --prompts of each grid. --decode: compares with millrace-decode after its own
prefill under the same plan. --kills: number of times the group is killed, in random phases; prompts continue until the last kill. --restarts: number
of times the coordinator is killed and started again, within --restart-within-s of the moment at which a group takes prompts; prompts continue until
the last. --aborts: number of clients that hang up in random phases while the prompts run, each within --abort-within-s: about as long as a prompt
takes. --blocks: size of vLLM's KV cache; a small cache and a large --answer-tokens make vLLM preempt requests. --limit-s: after this time with a grid no
more prompts are sent, no more groups killed and no coordinator restarted; the table says how many were. --options: more for vLLM's server. The four
digits of a record decide whether an answer is right. Further tokens are compared with --own only, and may differ if the group's cache is in 8-bit floats.

Prints JSON, and appends a table to --output. Exit status 1 for a wrong, different or missing answer, an error, a failed client (the reason is printed
at once, and the other clients continue), and a block or a lease that is not released. Needs what tests/engines/run has installed."""
import argparse
import concurrent.futures
import contextlib
import itertools
import json
import os
import random
import shlex
import signal
import sys
import threading
import time
import traceback
from collections import Counter

import engine_gpus

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DIGITS = 4


class Gate:
    """Lets all requests through or none, and knows how many are under way."""

    def __init__(self):
        self._changed = threading.Condition()
        self._closed, self._inside = False, 0

    def __enter__(self):
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1

    def __exit__(self, *_):
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def quiet(self, closed):
        """Opens or closes the gate. Closing waits for the requests inside."""
        with self._changed:
            self._closed = closed
            self._changed.notify_all()
            if closed:
                self._changed.wait_for(lambda: self._inside == 0)


class Campaign:
    def __init__(self, arguments, service, server, prompts):
        self.arguments, self.service, self.server = arguments, service, server
        self._prompts = prompts
        self._gate = Gate()

    def group_options(self):
        return (*engine_gpus.group_options(self.service, self.arguments), "--dtype", "bfloat16", "--head-plan", self.arguments.head_plan,
                "--kv-cache-dtype", self.arguments.kv_cache_dtype)

    def run(self, grid):
        """Returns a row of the table."""
        tp, cp = grid
        from service import wait_until
        wait_until("no group", lambda: self.service.get("/ready")[0] != 200, 60)
        group = self.service.start_group(*self.group_options(), tp=tp, cp=cp)
        before = self.server.counters()
        began = time.monotonic()
        outcomes, killer, restarts, hung_up, failures = self._load(group, tp, cp)
        seconds = time.monotonic() - began
        wait_until("vLLM at rest", self.server.at_rest, 60)
        counted = {name: value - before[name] for name, value in self.server.counters().items()}
        verdicts = Counter(verdict for _, verdict, _ in outcomes)
        row = {"vllm tp": self.arguments.tp, "group": f"{tp}x{cp}", "plan": self.arguments.head_plan,
               "group's KV cache": self.arguments.kv_cache_dtype, "answers": len(outcomes),
               "prompt tokens": sum(len(prompt["prompt_token_ids"]) for prompt, _, _ in outcomes), "seconds": round(seconds),
               "right": verdicts["right"], "wrong": verdicts["wrong"], "errors": verdicts["error"], "hung": verdicts["hung"],
               "failed clients": len(failures),
               "prompt tokens vLLM computed": counted["computed"], "brought": counted["external_kv_transfer"]}
        if killer:
            row.update({"kills": sum(killer.moments.values()), **{f"killed {moment}": count for moment, count in sorted(killer.moments.items())},
                        **{f"killed {target}": count for target, count in sorted(killer.targets.items())}, "groups that stayed": killer.stayed})
        if self.arguments.restarts:
            row.update({"restarts of the coordinator": restarts})
        if self.arguments.aborts:
            row.update({"aborted": hung_up})
        if self.arguments.blocks:
            row.update({"preemptions": counted["preemptions"]})
        if self.arguments.own:
            row.update(self._compare_with_own(outcomes))
        if self.arguments.decode:
            row.update(self._compare_with_decode(outcomes))
        wait_until("the end of all leases", lambda: "\nmillrace_active_leases 0" in self.service.get("/metrics")[2], 150)
        self._end(self.service.groups[-1])
        row["passed"] = "yes" if self._passed(row) else "NO"
        return row

    def _passed(self, row):
        good = row["wrong"] == row["errors"] == row["hung"] == row["failed clients"] == 0
        if not (self.arguments.kills or self.arguments.restarts or self.arguments.aborts or self.arguments.blocks):
            good = good and row["prompt tokens vLLM computed"] == row["answers"] and row["brought"] == row["prompt tokens"]
        if self.arguments.own:
            good = good and row["equal to vLLM's own"] == row["compared with vLLM's own"]
        if self.arguments.decode:
            good = good and row["right"] >= row["millrace-decode right"]
        return good

    def _load(self, group, tp, cp):
        """Returns ([(prompt, verdict, token ids)], killer or None, restarts of the coordinator, number of requests abandoned before their answer,
        exceptions of clients)."""
        from group_killer import GroupKiller
        killer = None
        if self.arguments.kills:
            killer = GroupKiller(self.service, group, lambda: self.service.start_group(*self.group_options(), tp=tp, cp=cp, wait=False),
                                 self.arguments.kills, self._gate.quiet)
        numbers, deadline = itertools.count(1), time.monotonic() + self.arguments.limit_s
        outcomes, failures = [], []

        def answer():
            while True:
                number, out_of_time = next(numbers), time.monotonic() > deadline
                if out_of_time and killer:
                    killer.stop()
                if (number > self.arguments.prompts or out_of_time) and (killer is None or killer.done()) and (restarted is None or restarted.done()):
                    return
                prompt = self._prompts.next()
                with self._gate:
                    outcome = prompt, *self._ask(prompt)
                outcomes.append(outcome)
                if number % 10 == 0 or outcome[1] != "right":
                    print(f"request {number}: {outcome[1:]}", file=sys.stderr, flush=True)

        def told(work):
            """Prints a client's exception at once, because the others may continue for hours."""
            try:
                return work()
            except Exception as why:
                failures.append(why)
                traceback.print_exc()

        with concurrent.futures.ThreadPoolExecutor(self.arguments.concurrency + 2) as pool:
            restarted = pool.submit(told, lambda: self._restart_coordinator(deadline)) if self.arguments.restarts else None
            hung_up = pool.submit(told, self._hang_up)
            for _ in range(self.arguments.concurrency):
                pool.submit(told, answer)
        if killer:
            killer.join(300)
        return outcomes, killer, restarted.result() if restarted else 0, hung_up.result(), failures

    def _ask(self, prompt):
        """Returns (verdict, token ids)."""
        try:
            status, tokens = self.server.complete(prompt["prompt_token_ids"], self.arguments.answer_tokens)
        except TimeoutError:
            return "hung", None
        except OSError as error:
            return "error", str(error)
        if status != 200:
            return "error", tokens
        return "right" if tokens[:DIGITS] == prompt["answer_token_ids"] else "wrong", tokens

    def _restart_coordinator(self, deadline):
        """Returns how often it was restarted."""
        from service import wait_until
        numbers, count, within_s = random.Random(5), 0, self.arguments.restart_within_s

        def is_ready():
            with contextlib.suppress(OSError):
                return self.service.ready()
            return False
        while count < self.arguments.restarts and time.monotonic() < deadline:
            time.sleep(numbers.uniform(0, within_s))
            self.service.restart_coordinator()
            count += 1
            wait_until("a group that is back", is_ready, 60)
        return count

    def _hang_up(self):
        numbers, count, within_s = random.Random(3), 0, self.arguments.abort_within_s
        for _ in range(self.arguments.aborts):
            prompt = self._prompts.next()
            # Hangs up at any point from the way to the coordinator until after the load; some requests are then in the queue between others.
            count += self.server.abandon(prompt["prompt_token_ids"], self.arguments.answer_tokens, lambda: time.sleep(numbers.uniform(0, within_s)))
        return count

    def _compare_with_own(self, outcomes):
        outcomes = outcomes[:self.arguments.prompts]  # there are many more while groups are killed
        before = self.server.counters()
        with concurrent.futures.ThreadPoolExecutor(self.arguments.concurrency) as pool:
            own = list(pool.map(lambda outcome: self.server.complete_alone(outcome[0]["prompt_token_ids"], self.arguments.answer_tokens)[1], outcomes))
        after = self.server.counters()
        return {"compared with vLLM's own": len(outcomes),
                "equal to vLLM's own": sum(tokens == alone for (_, _, tokens), alone in zip(outcomes, own, strict=True)),
                "prompt tokens vLLM computed for its own": after["local_compute"] - before["local_compute"]}

    def _compare_with_decode(self, outcomes):
        right = equal = 0
        for prompt, _, tokens in outcomes:
            status, _, response = self.service.prefill(prompt)
            assert status == 200, response
            code, report = self.service.decode(response)
            assert code == 0, report
            self.service.request("DELETE", f"/v1/prefill/{response['request_id']}")
            right += report["generated_token_ids"] == prompt["answer_token_ids"]
            equal += report["generated_token_ids"] == (tokens or [])[:DIGITS]
        return {"millrace-decode right": right, "equal to millrace-decode": equal}

    def _end(self, group):
        group.terminate()
        group.wait(60)
        self.service.groups.remove(group)


def by_grid(arguments):
    """The arguments for each grid. Raises ValueError."""
    names, count = ("kv_cache_dtype", "kills", "restarts", "aborts"), len(arguments.groups)
    for name in names:
        if len(getattr(arguments, name)) not in (1, count):
            raise ValueError(f"--{name.replace('_', '-')} takes one value, or {count}: one for each of --groups")
    values = {name: getattr(arguments, name) * (count if len(getattr(arguments, name)) == 1 else 1) for name in names}
    grids = [argparse.Namespace(**{**vars(arguments), **{name: values[name][grid] for name in names}}) for grid in range(count)]
    if any(grid.kills and grid.restarts for grid in grids):
        raise ValueError("--kills asks the coordinator when to kill, so it goes without --restarts")
    return grids


def table(rows, measured):
    text = "".join(f"- {name}: {value}\n" for name, value in measured.items()) + "\n"
    text += "| |" + " |" * len(rows) + "\n|---|" + "---|" * len(rows) + "\n"
    for name in dict.fromkeys(name for row in rows for name in row):
        text += f"| {name} | " + " | ".join(str(row.get(name, "")) for row in rows) + " |\n"
    return text + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs=2, default=[4096, 16384])
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--groups", nargs="+", default=["2x2"])
    parser.add_argument("--head-plan", default="dense")
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8"], nargs="+", default=["auto"])
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--kills", type=int, nargs="+", default=[0])
    parser.add_argument("--restarts", type=int, nargs="+", default=[0])
    parser.add_argument("--restart-within-s", type=float, default=3)
    parser.add_argument("--aborts", type=int, nargs="+", default=[0])
    parser.add_argument("--abort-within-s", type=float, default=30)
    parser.add_argument("--blocks", type=int, default=0)
    parser.add_argument("--answer-tokens", type=int, default=DIGITS)
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    parser.add_argument("--log", default="/tmp/openai_campaign.log", help="of vLLM")
    parser.add_argument("--options", default="")
    parser.add_argument("--commit", default="", help="what to state where git is not available")
    parser.add_argument("--output")
    engine_gpus.add_options(parser)
    arguments = parser.parse_args()
    try:
        grids = by_grid(arguments)
    except ValueError as why:
        parser.error(str(why))
    os.environ["MILLRACE_SOURCE_DIR"], os.environ["MILLRACE_BIN_DIR"] = ROOT, os.path.abspath(arguments.bin)
    # Waiting threads must not spin on cores that others need.
    os.environ.update(GOMP_SPINCOUNT="1000", UCX_MEM_MMAP_HOOK_MODE="none")
    sys.path[:0] = [os.path.join(ROOT, "tests/e2e"), os.path.join(ROOT, "bench")]
    from endless_prompts import EndlessPrompts
    from measured_on import measured_on
    from openai_server import PATIENCE_S, OpenAIServer
    from service import MODEL_DIR, Service, free_ports, make_prompt, wait_until

    measured = {**measured_on(arguments.commit), **engine_gpus.measured_on(arguments)}  # before anything changes
    service = Service()
    options = shlex.split(arguments.options) + (["--num-gpu-blocks-override", arguments.blocks] if arguments.blocks else [])
    server = OpenAIServer(MODEL_DIR, f"127.0.0.1:{service.http_port}", free_ports(1), arguments.log, arguments.tp, {"only_if_sooner": False}, options,
                          gpus=arguments.vllm_gpus, max_model_len=max(16896, arguments.tokens[1] + arguments.answer_tokens + 64))
    prompts, rows = EndlessPrompts(*arguments.tokens, make_prompt), []
    try:
        wait_until("vLLM's server", server.ready, PATIENCE_S)
        for grid, for_grid in zip(arguments.groups, grids, strict=True):
            rows.append(Campaign(for_grid, service, server, prompts).run([int(ranks) for ranks in grid.split("x")]))
            print(json.dumps(rows[-1]), flush=True)
        return 0 if all(row["passed"] == "yes" for row in rows) else 1
    except BaseException:
        print(service.logs(), file=sys.stderr)
        raise
    finally:
        if arguments.output and rows:  # also of what a failure has left
            with open(arguments.output, "a") as file:
                file.write(table(rows, {**measured, "date": time.strftime("%Y-%m-%d", time.gmtime())}))
        server.close()
        service.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
