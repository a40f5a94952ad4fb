#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A group of eight ranks loses one rank in every phase of its life, by SIGKILL and by SIGSTOP.

The test holds a phase by stopping the rank that is about to die. Without that rank no other rank gets past the
layer, and the test sees what the coordinator knows before it kills the rank.
"""
import contextlib
import os
import resource
import signal
import sys
import time
import unittest

from service import NOTICED_S, PATIENCE_S, SLOWDOWN, InBackground, Service, ServiceTestCase, make_prompt, stop, tokens_for, wait_until

GRID = {"tp": 2, "cp": 4}
NUM_RANKS = 8
SHORT = make_prompt(512, seed=1)
# Each layer takes long compared with the 10 ms between looks at the coordinator.
LAYERED = make_prompt(tokens_for(3072), seed=2)
NUM_LAYERS = 5

# mpirun kills what is left after odls_base_sigkill_timeout, including stopped ranks.
GONE_S = 30
# Some ten times as long as a layer takes here.
LAYER_TIMEOUT_S = 4 if SLOWDOWN == 1 else 16


def shared_memory_files(pids):
    """The files under /dev/shm that the processes map."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as file:
            found |= {line.split()[5] for line in file if "/dev/shm/" in line and "(deleted)" not in line}
    return found


def connections_to(port):
    with open("/proc/net/tcp") as file:
        fields = [line.split() for line in file.readlines()[1:]]
    return sum(int(field[2].rsplit(":", 1)[1], 16) == port and field[3] == "01" for field in fields)


def connections_of(pid):
    """(own port, the other's) of each TCP connection of a process."""
    inodes = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{descriptor}").removeprefix("socket:[").removesuffix("]"))
    with open(f"/proc/{pid}/net/tcp") as file:
        fields = [line.split() for line in file.readlines()[1:]]
    return {tuple(int(address.rsplit(":", 1)[1], 16) for address in field[1:3]) for field in fields if field[3] == "01" and field[9] in inodes}


def are_connected(one, other):
    return any((port, own) in connections_of(other) for own, port in connections_of(one))


class LostRankTest(ServiceTestCase):
    OPTIONS = "--threads", "1"

    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    @property
    def group(self):
        return self.service.groups[-1]

    def start_group(self, *options, wait=True):
        self.service.start_group(*self.OPTIONS, *options, **GRID, sigkill_timeout_s=1, wait=wait)

    def have_a_group(self):
        """Keeps the group that the previous test left; starts a new one if that test went wrong."""
        if not self.service.ranks() or self.service.get("/ready")[0] != 200:
            self.end_group()
            self.start_group()

    def end_group(self):
        for pid in self.service.ranks().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for group in self.service.groups:
            group.wait(GONE_S)
        self.expect_not_ready()

    def expect_not_ready(self):
        wait_until("the coordinator to miss the group", lambda: self.service.get("/ready")[0] == 503, NOTICED_S)

    def hold_in_layer(self, layers_done):
        return self.service.hold_in_layer(self.RANK, LAYERED, layers_done)[1]

    def expect_retriable(self, post, since, within_s):
        status, headers, body = post.wait(within_s)
        self.assertEqual(status, 503, body)
        self.assertTrue(body["error"]["retriable"], body)
        self.assertIn("Retry-After", headers)
        self.report(f"answered after {post.ended_at - since:.2f} s: {body['error']['message']}")

    def expect_nothing_left(self, files, since):
        """Checks that the group ends and leaves nothing behind."""
        wait_until("the end of all ranks", lambda: not self.service.ranks(), GONE_S)
        gone_at = time.monotonic()
        code = self.group.wait(GONE_S)
        self.report(f"ranks gone after {gone_at - since:.2f} s, mpirun after {time.monotonic() - since:.2f} s")
        self.assertNotEqual(code, 0)
        self.assertEqual([path for path in files if os.path.exists(path)], [])
        self.expect_not_ready()
        self.assertEqual(self.service.get("/health")[0], 200)

    def expect_a_new_group_serves(self, *options):
        self.start_group(*options)
        self.expect_short_is_served()

    def expect_short_is_served(self):
        status, _, body = self.service.prefill(SHORT)
        self.assertEqual(status, 200, body)
        self.assertEqual(body["first_token_id"], SHORT["answer_token_ids"][0])

    def report(self, text):
        print(f"  rank {self.RANK}: {text}", flush=True)


class KilledRank:
    def kill(self, rank):
        ranks = self.service.ranks()
        files = shared_memory_files(ranks.values())
        os.kill(ranks[rank], signal.SIGKILL)
        return files, time.monotonic()

    def kill_in_layer(self, layers_done):
        self.have_a_group()
        post = self.hold_in_layer(layers_done)
        files, killed_at = self.kill(self.RANK)
        self.expect_retriable(post, killed_at, NOTICED_S)
        self.expect_nothing_left(files, killed_at)
        self.service.wait_for_log(f"rank {self.RANK} is lost")  # mpirun would end the ranks too, but does not log this
        self.expect_a_new_group_serves()

    def test_by_an_exception(self):
        """An exception as from a failing GPU: memory runs out where nothing handles that, in the command that brings the prompt; or,
        where the C library still holds enough for the command, in an allocation that may fail."""
        self.have_a_group()
        ranks = self.service.ranks()
        files = shared_memory_files(ranks.values())
        resource.prlimit(ranks[self.RANK], resource.RLIMIT_AS, (1, resource.RLIM_INFINITY))
        since = time.monotonic()
        post = InBackground(lambda: self.service.prefill({"prompt_token_ids": [1] * 250000}))
        status, _, body = post.wait(NOTICED_S)
        if status == 429:
            self.assertEqual(body["error"]["type"], "exhausted", body)
            resource.prlimit(ranks[self.RANK], resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            self.expect_short_is_served()
            self.assertEqual(self.service.ranks(), ranks)
            return
        self.expect_retriable(post, since, NOTICED_S)
        self.expect_nothing_left(files, since)
        self.expect_a_new_group_serves()

    def test_while_starting(self):
        self.end_group()
        self.start_group(wait=False)
        wait_until("all ranks", lambda: len(self.service.ranks()) == NUM_RANKS, 30)
        files, killed_at = self.kill(self.RANK)
        self.expect_nothing_left(files, killed_at)
        self.expect_a_new_group_serves()

    def test_a_member_that_loads_slowly_is_waited_for(self):
        """LLMKube#1757. The others neither end nor begin anew while it does not answer."""
        self.end_group()
        log = os.path.join(self.service.directory.name, "ranks.log")
        before = os.path.getsize(log) if os.path.exists(log) else 0
        self.start_group(wait=False)
        ranks = wait_until("all ranks", lambda: len(found := self.service.ranks()) == NUM_RANKS and found, 30)

        def is_missed():
            with open(log, errors="replace") as file:
                file.seek(before)
                return f"rank {self.RANK} is silent" in file.read()
        other = ranks[0 if self.RANK != 0 else 1]
        wait_until("the ranks' watch over each other", lambda: are_connected(ranks[self.RANK], other), PATIENCE_S)
        stop(ranks[self.RANK])
        wait_until("a word about the rank that is silent", is_missed, PATIENCE_S)
        self.assertEqual(self.service.ranks(), ranks)
        os.kill(ranks[self.RANK], signal.SIGCONT)
        wait_until("a ready group", self.service.ready, PATIENCE_S)
        self.assertEqual(self.service.ranks(), ranks)
        self.assertEqual(self.service.prefill(SHORT)[0], 200)

    def test_while_registering(self):
        self.end_group()
        coordinator = self.service.coordinator.pid
        stop(coordinator)
        try:
            self.start_group(wait=False)
            # The kernel accepts connections for the stopped coordinator.
            wait_until("rank 0 to connect", lambda: connections_to(self.service.group_port), 60)
            files, killed_at = self.kill(self.RANK)
            wait_until("the end of all ranks", lambda: not self.service.ranks(), GONE_S)
        finally:
            os.kill(coordinator, signal.SIGCONT)
        self.expect_nothing_left(files, killed_at)
        self.expect_a_new_group_serves()

    def test_in_the_first_layer_with_another_request_queued(self):
        self.have_a_group()
        post = self.hold_in_layer(layers_done=0)
        queued = InBackground(lambda: self.service.prefill(SHORT, request_id="queued"))
        wait_until("a queued request", lambda: self.service.get("/v1/prefill/queued")[2].get("status") == "queued", 30)
        files, killed_at = self.kill(self.RANK)
        self.expect_retriable(post, killed_at, NOTICED_S)
        self.expect_nothing_left(files, killed_at)
        self.start_group()
        status, _, body = queued.wait(60)
        self.assertEqual(status, 200, body)
        self.assertEqual(body["first_token_id"], SHORT["answer_token_ids"][0])
        self.service.request("DELETE", "/v1/prefill/queued")

    def test_in_a_middle_layer(self):
        self.kill_in_layer(layers_done=2)

    def test_in_the_last_layer(self):
        self.kill_in_layer(layers_done=NUM_LAYERS - 1)

    def test_while_a_decode_node_pulls(self):
        self.have_a_group()
        _, _, response = self.service.prefill(SHORT)
        addresses = {shard["address"] for shard in response["manifest"]["shards"] if shard["rank"] == self.RANK}
        port = int(addresses.pop().rsplit(":", 1)[1])
        stop(self.service.ranks()[self.RANK])
        decode = InBackground(lambda: self.service.decode(response, "--transport", "tcp"))
        wait_until("the decode node to connect", lambda: connections_to(port), 30)
        files, killed_at = self.kill(self.RANK)
        code, message = decode.wait(NOTICED_S)
        self.assertEqual(code, 1, message)
        self.report(f"decode node ended after {decode.ended_at - killed_at:.2f} s")
        self.expect_nothing_left(files, killed_at)
        self.expect_a_new_group_serves()

    def test_while_idle(self):
        self.have_a_group()
        files, killed_at = self.kill(self.RANK)
        self.expect_not_ready()
        self.report(f"not ready after {time.monotonic() - killed_at:.2f} s")
        self.expect_nothing_left(files, killed_at)
        self.expect_a_new_group_serves()

    def test_while_draining(self):
        self.end_group()
        self.expect_a_new_group_serves("--drain-timeout-s", "60")  # the prompt's lease would keep the drain waiting
        drains = self.service.logs().count("draining: 1 leases")
        self.group.send_signal(signal.SIGUSR1)
        wait_until("the drain", lambda: self.service.logs().count("draining: 1 leases") > drains, 30)
        files, killed_at = self.kill(self.RANK)
        self.expect_nothing_left(files, killed_at)
        self.expect_a_new_group_serves()


class StoppedRank:
    """A stopped process sends nothing, and none of its connections closes."""
    OPTIONS = "--threads", "1", "--layer-timeout-s", str(LAYER_TIMEOUT_S)

    def test_in_a_layer_ends_the_group_by_the_layers_deadline(self):
        self.have_a_group()
        files = shared_memory_files(self.service.ranks().values())
        post = self.hold_in_layer(layers_done=2)
        stopped_at = time.monotonic()
        self.expect_retriable(post, stopped_at, LAYER_TIMEOUT_S + NOTICED_S)
        self.expect_nothing_left(files, stopped_at)
        self.service.wait_for_log(f"rank {self.RANK} silent for")
        self.expect_a_new_group_serves()

    def test_between_requests_ends_the_group_as_soon(self):
        self.have_a_group()
        ranks = self.service.ranks()
        files = shared_memory_files(ranks.values())
        stop(ranks[self.RANK])
        self.expect_nothing_left(files, time.monotonic())
        self.expect_a_new_group_serves()


# Rank 0 talks to the coordinator and hears from all ranks; rank 5 shares neither a row nor a column of the grid with it.
class KilledRank0Test(KilledRank, LostRankTest):
    RANK = 0


class KilledRank5Test(KilledRank, LostRankTest):
    RANK = 5


class StoppedRank0Test(StoppedRank, LostRankTest):
    RANK = 0


class StoppedRank5Test(StoppedRank, LostRankTest):
    RANK = 5


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
