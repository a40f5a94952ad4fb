# SPDX-License-Identifier: Apache-2.0
"""Plays prompts of a trace against a live service; shared by the scripts that do so."""
import json
import math
import os
import statistics
import threading
import time

# As in bench/fleet/trace.cc: (share of prompts that are shorter, tokens).
LENGTHS = (0, 1024), (0.18, 8192), (0.47, 65536), (0.5, 67000), (0.965, 262144), (1, 1048576)


def length_at(share):
    (low, first), (high, last) = next(pair for pair in zip(LENGTHS, LENGTHS[1:]) if share <= pair[1][0])
    return first * (last / first) ** ((share - low) / (high - low))


def draw_lengths(arguments, draw):
    """Divides the published lengths into --requests equal shares and returns one length of each, divided by --scale, in random order."""
    shares = [(i + 0.5) / arguments.requests for i in range(arguments.requests)]
    draw.shuffle(shares)
    return [max(2, round(length_at(share) / arguments.scale)) for share in shares]


def add_group_arguments(parser, root):
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", default=os.path.join(root, "tests/models/fixture"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--cp", type=int, default=4)
    parser.add_argument("--host-pool", default="1GiB")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--head-plan", default="dense")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side-by-side-tokens", type=int, default=8192)
    parser.add_argument("--wait", type=float, default=0, help="seconds to wait after start-up: on GPUs, for the host pool to be page-locked")


def group_options(arguments):
    """Returns the options for Service.start_group, without the grid."""
    return ["--model", arguments.model, "--device", arguments.device, "--dtype", arguments.dtype, "--threads", arguments.threads,
            "--head-plan", arguments.head_plan, "--kv-cache-dtype", arguments.kv_cache_dtype, "--host-pool", arguments.host_pool, "--device-pool", "0",
            "--side-by-side-tokens", arguments.side_by_side_tokens]


def start_groups(service, arguments, *options):
    """Starts as many groups as --groups says, with `options` in addition to those of the arguments. Returns once all of them take prompts."""
    from service import wait_until

    for number in range(arguments.groups):
        if arguments.groups > 1 and arguments.device == "cuda":
            ranks = arguments.tp * arguments.cp
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(number * ranks + rank) for rank in range(ranks))
        service.start_group(*group_options(arguments), *options, "--group-name", f"group-{number}", tp=arguments.tp, cp=arguments.cp)
    wait_until("all groups", lambda: service.get("/v1/models")[2]["data"][0]["ready_groups"] == arguments.groups, 120)


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


class Run:
    def __init__(self, service, model, bodies, arrivals, cache, priorities=None):
        self._service = service
        self.answers = [None] * len(bodies)
        # Made before the first is sent: a million tokens take the client 0.2 s to write as JSON.
        requests = [json.dumps({"model": model, "prompt_token_ids": ids, "cache": cache, "priority": priority, "deadline_ms": 3_600_000, "lease_ms": 5000})
                    for ids, priority in zip(bodies, priorities or [0] * len(bodies))]
        begin = time.monotonic()
        threads = []
        for i, (request, at_s) in enumerate(zip(requests, arrivals)):
            time.sleep(max(0, begin + at_s - time.monotonic()))
            threads.append(threading.Thread(target=self._send, args=(i, request)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        self.seconds = time.monotonic() - begin

    def _send(self, i, request):
        begin = time.monotonic()
        status, _, answer = self._service.request("POST", "/v1/prefill", request, timeout_s=3600)
        self.answers[i] = (status, time.monotonic() - begin, answer)
        if status == 200:
            self._service.request("DELETE", f"/v1/prefill/{answer['request_id']}")

    def row(self, name, bodies, short_tokens):
        for status, _, answer in self.answers:
            assert status == 200, answer
        waits = [wait for _, wait, _ in self.answers]
        short = [wait for wait, ids in zip(waits, bodies) if len(ids) < short_tokens] or [math.nan]
        tokens = sum(map(len, bodies))
        found = sum(answer["cached_tokens"] for _, _, answer in self.answers)
        print(f"{name:34} {self.seconds:7.1f} s  {tokens / self.seconds:7.0f} tokens/s  {found / tokens:6.1%} found  "
              f"ttft p50 {statistics.median(waits):7.2f} p99 {percentile(waits, 0.99):7.2f}  "
              f"{len(short)} short p50 {statistics.median(short):6.2f} p99 {percentile(short, 0.99):7.2f}  load {os.getloadavg()[0]:.1f}", flush=True)

    def each(self, bodies):
        """Prints for each prompt its tokens, cached tokens, seconds to the answer, seconds in the queue, and seconds by stage on the group."""
        for i in sorted(range(len(bodies)), key=lambda i: self.answers[i][1]):
            _, wait, answer = self.answers[i]
            stages = "  ".join(f"{name} {seconds:.3f}" for name, seconds in answer["stages"].items())
            print(f"  {len(bodies[i]):8} {answer['cached_tokens']:8}  {wait:6.2f} s  queue {answer['queue_seconds']:6.2f}  {stages}", flush=True)
