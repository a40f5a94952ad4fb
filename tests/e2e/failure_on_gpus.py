#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills and stops ranks of a group on GPUs in the middle of a long prompt, and checks what that costs and what stays behind.

    MILLRACE_SOURCE_DIR=. MILLRACE_BIN_DIR=build/release/bin tests/e2e/failure_on_gpus.py [GPUS]

Run by hand: it takes all of a machine's GPUs for a minute. Exit status 1 when a promise of docs/ARCHITECTURE.md is broken.
"""
import os
import random
import signal
import subprocess
import sys
import time

from service import InBackground, Service, wait_until

NUM_TOKENS = 131072
MODEL = "synthetic:llama-3-8b"
LAYER_TIMEOUT_S = 3
# Room for two caches of such a prompt, 16 GiB each, and their bookkeeping.
HOST_POOLS_GIB = 40
# A GPU context takes some memory, and processes that are not ours may hold one.
SLACK_MIB = 64
# The driver frees a dead process's memory after the process is no longer visible.
MEMORY_BACK_S = 20


def memory_used_mib():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], check=True,
                         capture_output=True, text=True, timeout=30).stdout
    return [int(line) for line in out.split()]


class Trial:
    def __init__(self, service, num_gpus):
        self.service = service
        self.num_gpus = num_gpus
        self.idle_mib = memory_used_mib()
        tokens = random.Random(1)
        self.prompt = {"prompt_token_ids": [tokens.randrange(1000) for _ in range(NUM_TOKENS)]}
        self.broken = []

    def launch(self, wait=True):
        return self.service.start_group(
            "--model", MODEL, "--device", "cuda", "--host-pool", f"{HOST_POOLS_GIB // self.num_gpus}GiB", "--device-pool", "0",
            "--layer-timeout-s", LAYER_TIMEOUT_S, "--head-plan", "vertical-slash:1000,6096",
            tp=1, cp=self.num_gpus, sigkill_timeout_s=1, wait=wait)

    def start_group(self):
        begun = time.monotonic()
        self.group = self.launch()
        self.model = self.service.get("/v1/models")[2]["data"][0]["id"]
        print(f"  a group is ready after {time.monotonic() - begun:.1f} s", flush=True)

    def prefill(self, **fields):
        return self.service.prefill(self.prompt, model=self.model, lease_ms=1000, **fields)

    def expect_served(self):
        begun = time.monotonic()
        status, _, body = self.prefill()
        self.expect(status == 200, f"a prompt is answered with {status} after {time.monotonic() - begun:.2f} s")

    def expect(self, holds, text):
        print(f"  {'ok' if holds else 'BROKEN'}: {text}", flush=True)
        if not holds:
            self.broken.append(text)

    def memory_left_mib(self):
        """Memory in use on each GPU beyond the least ever seen: at the start another program's memory may not be freed yet."""
        used = memory_used_mib()
        self.idle_mib = [min(pair) for pair in zip(used, self.idle_mib)]
        return [now - idle for now, idle in zip(used, self.idle_mib)]

    def hit(self, name, rank, number, answer_within_s, layer=8):
        """Sends signal `number` to rank `rank` once `layer` layers are done, then checks all that is promised for the end of a group."""
        print(f"{name} of rank {rank} after layer {layer}", flush=True)
        request_id = f"{name}-{rank}-{layer}"
        post = InBackground(lambda: self.prefill(request_id=request_id))
        wait_until("a layer in the middle", lambda: self.service.layers_done(request_id) >= layer, 60)
        os.kill(self.service.ranks()[rank], number)
        hit_at = time.monotonic()
        status, _, body = post.wait(60)
        answered_s = post.ended_at - hit_at
        self.expect(status == 503 and body["error"]["retriable"], f"answered with {status}: {body['error']['message']}")
        self.expect(answered_s < answer_within_s, f"after {answered_s:.2f} s")
        if number == signal.SIGSTOP:
            wait_until("the word of a silent rank", lambda: f"rank {rank} is silent" in self.service.logs(), 60)
        self.expect_end(hit_at)
        self.start_group()
        self.expect_served()

    def hit_idle(self, rank):
        print(f"SIGKILL of rank {rank} with nothing to do", flush=True)
        os.kill(self.service.ranks()[rank], signal.SIGKILL)
        hit_at = time.monotonic()
        wait_until("no group", lambda: self.service.get("/ready")[0] != 200, 60)
        noticed_s = time.monotonic() - hit_at
        self.expect(noticed_s < 2, f"the service is not ready after {noticed_s:.2f} s")
        self.expect_end(hit_at)

    def hit_starting(self, rank):
        """Kills the rank during the start, once a GPU holds half of its weights: while they are loaded, or in a later phase."""
        print(f"SIGKILL of rank {rank} while it starts", flush=True)
        self.group = self.launch(wait=False)
        wait_until("weights on a GPU", lambda: max(self.memory_left_mib()) > 8192, 60)
        os.kill(self.service.ranks()[rank], signal.SIGKILL)
        self.expect_end(time.monotonic())
        self.start_group()
        self.expect_served()

    def expect_end(self, hit_at):
        """Checks that all ranks and the launcher are gone, and their memory on the GPUs."""
        wait_until("the end of all ranks", lambda: not self.service.ranks(), 60)
        print(f"  ranks gone after {time.monotonic() - hit_at:.2f} s", flush=True)
        self.expect(self.group.wait(60) != 0, f"mpirun gone after {time.monotonic() - hit_at:.2f} s")
        while max(left := self.memory_left_mib()) > SLACK_MIB and time.monotonic() - hit_at < MEMORY_BACK_S:
            pass
        self.expect(max(left) <= SLACK_MIB,
                    f"GPU memory left behind after {time.monotonic() - hit_at:.2f} s, MiB: {left}")


def main():
    num_gpus = int(sys.argv[1]) if len(sys.argv) > 1 else len(memory_used_mib())
    service = Service()
    try:
        trial = Trial(service, num_gpus)
        trial.start_group()
        trial.expect_served()
        # The ranks are told of a killed rank. Nobody is told of a rank that hangs, so only the layer's deadline ends the group.
        trial.hit("SIGKILL", num_gpus // 2, signal.SIGKILL, answer_within_s=2)
        trial.hit("SIGSTOP", 1, signal.SIGSTOP, answer_within_s=LAYER_TIMEOUT_S + 2)
        trial.hit("SIGKILL", 0, signal.SIGKILL, answer_within_s=2)
        trial.hit("SIGKILL", 1, signal.SIGKILL, answer_within_s=2, layer=1)
        trial.hit("SIGKILL", 1, signal.SIGKILL, answer_within_s=2, layer=31)
        trial.hit_idle(1)
        trial.hit_starting(1)
        trial.hit("SIGSTOP", 0, signal.SIGSTOP, answer_within_s=LAYER_TIMEOUT_S + 2)
    except Exception:
        print(service.logs())
        raise
    finally:
        service.close()
    print("broken: " + "; ".join(trial.broken) if trial.broken else "all as promised")
    return 1 if trial.broken else 0


if __name__ == "__main__":
    sys.exit(main())
