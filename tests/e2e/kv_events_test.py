#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A subscriber that knows only ZeroMQ, MessagePack and vLLM's names follows a group and predicts what each prompt finds cached."""
import os
import random
import signal
import sys
import unittest

from service import MODEL_DIR, PATIENCE_S, Service, ServiceTestCase, free_ports, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
try:
    import msgpack
    import zmq
except ImportError:
    sys.path.insert(0, os.path.join(HERE, "..", "support"))
    import pypi
    try:
        sys.path.append(pypi.install(os.path.join(HERE, "requirements.txt"), os.path.join(HERE, "..", "..", "build", "e2e-packages")))
    except pypi.Unavailable as why:
        pypi.exit_unavailable(why)
    import msgpack
    import zmq

BLOCK = 64
TOPIC = "kv@group-0@fixture"
END_OF_REPLAY = -1


def tokens_of(seed, count):
    return [random.Random(f"{seed}-{i}").randrange(3, 2048) for i in range(count)]


class Index:
    """What a router records about a group: its blocks by parent and tokens."""

    def __init__(self):
        self.tokens = {}  # block held -> (parent, tokens)
        self.children = {}  # the reverse
        self.removed = []

    def apply(self, event):
        if event["type"] == "AllBlocksCleared":
            self.__init__()
        elif event["type"] == "BlockStored":
            parent = event["parent_block_hash"]
            tokens = event["token_ids"]
            assert event["block_size"] == BLOCK and len(tokens) == BLOCK * len(event["block_hashes"]), event
            for i, block in enumerate(event["block_hashes"]):
                assert block not in self.tokens, "stored twice"
                child = parent, tuple(tokens[i * BLOCK:(i + 1) * BLOCK])
                self.tokens[block], self.children[child] = child, block
                parent = block
        else:
            assert event["type"] == "BlockRemoved", event
            for block in event["block_hashes"]:
                del self.children[self.tokens.pop(block)]  # a KeyError means that it was not stored
                self.removed.append(block)

    def num_held(self, tokens):
        """The number of held blocks that the prompt begins with."""
        parent = None
        for count in range(len(tokens) // BLOCK):
            parent = self.children.get((parent, tuple(tokens[count * BLOCK:(count + 1) * BLOCK])))
            if parent is None:
                return count
        return len(tokens) // BLOCK


class Subscriber:
    def __init__(self, endpoint, topic=TOPIC):
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.connect(endpoint)
        self._socket.subscribe(topic)
        self.index = Index()
        self.messages = []  # (sequence number, payload)

    def receive(self):
        """Receives one message, which must arrive, and applies it to the index."""
        assert self._socket.poll(PATIENCE_S * 1000), "no message"
        topic, sequence, payload = self._socket.recv_multipart()
        assert topic == TOPIC.encode() and len(sequence) == 8, (topic, sequence)
        self.messages.append((int.from_bytes(sequence, "big"), payload))
        timestamp, events, data_parallel_rank = msgpack.unpackb(payload)
        assert timestamp > 1.7e9 and data_parallel_rank == 0, (timestamp, data_parallel_rank)
        for event in events:
            self.index.apply(event)
        return events

    def receive_until(self, condition):
        while not condition():
            self.receive()

    def close(self):
        self._context.destroy(linger=0)


def replay(endpoint, start):
    """(sequence number, payload) of each batch that is kept, requested as vLLM's subscribers do."""
    context = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.connect(endpoint)
        socket.send_multipart([b"", start.to_bytes(8, "big")])
        batches = []
        while True:
            assert socket.poll(PATIENCE_S * 1000), "no end of the replay"
            _, sequence, payload = socket.recv_multipart()
            if int.from_bytes(sequence, "big", signed=True) == END_OF_REPLAY:
                assert payload == b""
                return batches
            batches.append((int.from_bytes(sequence, "big"), payload))
    finally:
        context.destroy(linger=0)


class KvEventsTest(ServiceTestCase):
    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)
        port = free_ports(2)
        self.endpoint, self.replay_endpoint = (f"tcp://127.0.0.1:{port + i}" for i in range(2))

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def start(self, *options, **grid):
        group = self.service.start_group("--kv-events-endpoint", self.endpoint, "--kv-events-replay-endpoint", self.replay_endpoint,
                                         "--kv-events-topic", TOPIC, "--dtype", "float32", *options, **grid)
        return group

    def subscribe(self):
        subscriber = Subscriber(self.endpoint)
        self.addCleanup(subscriber.close)
        self.assertEqual(subscriber.receive(), [{"type": "AllBlocksCleared"}])
        return subscriber

    def run_prompt(self, tokens, **fields):
        """Returns its response. Ends the lease at once, so that its pages may be evicted. The group answers the renewal after publishing."""
        status, _, response = self.service.prefill({"prompt_token_ids": tokens}, cache="both", **fields)
        self.assertEqual(status, 200, response)
        renewal = {"lease_id": response["manifest"]["lease_id"], "lease_ms": 1}
        status, _, renewed = self.service.request("POST", f"/v1/prefill/{response['request_id']}/lease:renew", renewal)
        self.assertEqual(status, 200, renewed)
        return response

    def test_chains_of_blocks_link_and_only_what_is_new_is_stored(self):
        self.start(tp=2, cp=2)
        subscriber = self.subscribe()
        shared, first, second = (tokens_of(seed, count) for seed, count in (("shared", 640), ("first", 700), ("second", 500)))
        self.run_prompt(shared + first)
        stored = subscriber.receive()[0]
        self.assertEqual(stored["type"], "BlockStored")
        self.assertIsNone(stored["parent_block_hash"])
        self.assertEqual(stored["token_ids"], (shared + first)[:1340 // BLOCK * BLOCK])
        self.assertEqual(len(set(stored["block_hashes"])), 1340 // BLOCK)
        self.assertEqual((stored["medium"], stored["lora_id"], stored["lora_name"], stored["group_idx"]), ("GPU", None, None, 0))
        self.assertNotIn("extra_keys", stored)
        # Nothing in this prompt is new.
        self.run_prompt(shared + first)
        self.run_prompt(shared + second)
        behind = subscriber.receive()[0]
        self.assertEqual(behind["parent_block_hash"], stored["block_hashes"][640 // BLOCK - 1])
        self.assertEqual(behind["token_ids"], second[:(1140 // BLOCK - 10) * BLOCK])
        self.assertEqual(set(behind["block_hashes"]) & set(stored["block_hashes"]), set())
        # With a salt the same tokens make other blocks, and routers are told the salt as vLLM tells it.
        self.run_prompt(shared, cache_salt="mine")
        salted = subscriber.receive()[0]
        self.assertEqual(salted["extra_keys"], [["mine"], *[None] * 9])
        self.assertIsNone(salted["parent_block_hash"])
        self.assertEqual(salted["token_ids"], shared)
        self.assertEqual(set(salted["block_hashes"]) & set(stored["block_hashes"]), set())
        sequences = [sequence for sequence, _ in subscriber.messages]
        self.assertEqual(sequences, list(range(sequences[0], sequences[0] + 4)))
        # A subscriber that missed messages asks for them.
        self.assertEqual(replay(self.replay_endpoint, sequences[1]), subscriber.messages[1:])
        whole = replay(self.replay_endpoint, 0)
        self.assertEqual(msgpack.unpackb(whole[0][1])[1], [{"type": "AllBlocksCleared"}])
        self.assertEqual([sequence for sequence, _ in whole], list(range(sequences[-1] + 1)))

    def test_an_index_made_of_the_events_foretells_what_prompts_find(self):
        # 64 tokens take 320 KiB on each tensor-parallel rank, so there is room for some 68 blocks.
        self.start("--device-pool", "1MiB", "--host-pool", "10MiB", tp=2, cp=2)
        subscriber = self.subscribe()
        conversations = [tokens_of(f"conversation {i}", 1024) for i in range(8)]
        chosen = random.Random(7)
        for _ in range(40):
            tokens = chosen.choice(conversations)[:chosen.randrange(128, 1024)]
            held = min(subscriber.index.num_held(tokens), (len(tokens) - BLOCK) // BLOCK)
            response = self.run_prompt(tokens)
            self.assertEqual(response["cached_tokens"], held * BLOCK)
            published = replay(self.replay_endpoint, 0)[-1]
            subscriber.receive_until(lambda: subscriber.messages[-1] == published)
        self.assertGreater(len(subscriber.index.removed), 40)

    def test_a_group_that_starts_again_has_nothing(self):
        group = self.start(tp=1, cp=1)
        subscriber = self.subscribe()
        tokens = tokens_of("again", 512)
        self.run_prompt(tokens)
        subscriber.receive_until(lambda: subscriber.index.num_held(tokens) == 8)
        self.service.kill_rank(0)
        group.wait(PATIENCE_S)
        wait_until("the end of the group", lambda: not self.service.ready(), PATIENCE_S)
        self.start(tp=1, cp=1)
        self.assertEqual(subscriber.receive(), [{"type": "AllBlocksCleared"}])
        self.assertEqual(self.run_prompt(tokens)["cached_tokens"], 0)
        subscriber.receive_until(lambda: subscriber.index.num_held(tokens) == 8)

    def test_a_group_that_starts_again_tells_of_what_it_kept_and_of_nothing_else(self):
        # A block takes 320 KiB on each rank that has it, so half of what six prompts leave is kept.
        options = "--prefix-disk", "8MiB", "--disk-directory", os.path.join(self.service.directory.name, "disk"), "--threads", "1"
        group = self.start(*options, tp=2, cp=2)
        subscriber = self.subscribe()
        prompts = [tokens_of(f"kept {i}", 1024) for i in range(6)]
        for tokens in prompts:
            self.run_prompt(tokens)
        subscriber.receive_until(lambda: len(subscriber.index.tokens) == 6 * 1024 // BLOCK)
        group.send_signal(signal.SIGUSR1)
        self.assertEqual(group.wait(PATIENCE_S), 0)
        wait_until("the end of the group", lambda: not self.service.ready(), PATIENCE_S)
        self.start(*options, tp=2, cp=2)
        published = Index()
        for _, payload in replay(self.replay_endpoint, 0):
            for event in msgpack.unpackb(payload)[1]:
                published.apply(event)
        self.assertGreater(len(published.tokens), 0)
        self.assertLess(len(published.tokens), 6 * 1024 // BLOCK)
        # An earlier subscriber forgets the rest, and a late one hears of the kept blocks too.
        subscriber.receive_until(lambda: subscriber.index.tokens == published.tokens)
        late = self.subscribe()
        late.receive_until(lambda: late.index.tokens == published.tokens)
        held = {i: published.num_held(tokens) for i, tokens in enumerate(prompts)}
        self.assertEqual(sum(held.values()), len(published.tokens))
        # Prompts with the most held blocks come first, because computed prompts teach the group when not to load.
        for i in sorted(held, key=held.get, reverse=True):
            status, _, response = self.service.prefill({"prompt_token_ids": prompts[i] + tokens_of("end", 100)}, cache="read")
            self.assertEqual((status, response["cached_tokens"]), (200, held[i] * BLOCK), response)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
