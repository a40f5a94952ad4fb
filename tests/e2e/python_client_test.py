#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package millrace_kv over libmillrace_kv.so: prefills, events of requests that others posted, pulls, and clean ends."""
import array
import os
import random
import signal
import sys
import unittest

from service import SOURCE_DIR, Service, ServiceTestCase, make_prompt, tokens_for, wait_until

sys.path.insert(0, os.path.join(SOURCE_DIR, "sdk/python"))
import millrace_kv  # noqa: E402
from millrace_kv.coordinator import prompt_digest  # noqa: E402

NUM_LAYERS, NUM_KV_HEADS, HEAD_DIM, BLOCK = 5, 2, 128, 16
# Not a multiple of a page or a block.
SHORT = make_prompt(1024, seed=1)["prompt_token_ids"][:999]
MEDIUM = make_prompt(tokens_for(4096), seed=2)["prompt_token_ids"]
MARK = -1234.5


class Memory:
    """An array of floats, with views of it described as NumPy would describe them."""

    def __init__(self, size):
        self.floats = array.array("f", [MARK]) * size

    def view(self, shape, strides, offset=0, typestr="<f4"):
        """`strides` and `offset` count floats."""
        return View(self, shape, strides, offset, typestr)


class View:
    def __init__(self, memory, shape, strides, offset, typestr):
        self._floats, self._strides, self._offset = memory.floats, strides, offset
        self.__array_interface__ = {"data": (memory.floats.buffer_info()[0] + 4 * offset, False), "shape": shape, "typestr": typestr,
                                    "strides": tuple(4 * stride for stride in strides), "version": 3}

    def rows(self, block_ids, head, num_tokens):
        """The row of each token, as bytes."""
        found = []
        for token in range(num_tokens):
            begin = self._offset + block_ids[token // BLOCK] * self._strides[0] + head * self._strides[1] + token % BLOCK * self._strides[2]
            found.append(self._floats[begin:begin + HEAD_DIM].tobytes())
        return found


def fused(num_blocks, heads=NUM_KV_HEADS):
    """(K, V) of each layer in memory laid out as [blocks, heads, tokens, K then V], as in vLLM."""
    row = 2 * HEAD_DIM
    shape, strides = (num_blocks, heads, BLOCK, HEAD_DIM), (heads * BLOCK * row, BLOCK * row, row, 1)
    memories = [Memory(num_blocks * heads * BLOCK * row) for _ in range(NUM_LAYERS)]
    return [(memory.view(shape, strides), memory.view(shape, strides, HEAD_DIM)) for memory in memories]


def apart(num_blocks):
    """One head in memory laid out as [K and V, blocks, tokens, heads, dim]."""
    shape, strides, half = (num_blocks, 1, BLOCK, HEAD_DIM), (BLOCK * HEAD_DIM, HEAD_DIM, HEAD_DIM, 1), num_blocks * BLOCK * HEAD_DIM
    memories = [Memory(2 * half) for _ in range(NUM_LAYERS)]
    return [(memory.view(shape, strides), memory.view(shape, strides, half)) for memory in memories]


class PythonClientTest(ServiceTestCase):
    """Prefill with TP 2 x CP 2 in float32; one service for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group("--dtype", "float32", cp=2)
        cls.coordinator = millrace_kv.Coordinator(f"127.0.0.1:{cls.service.http_port}")
        cls.client = millrace_kv.Client()
        cls.addClassCleanup(cls.client.close)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def prefilled(self, tokens):
        prefill = self.coordinator.prefill("fixture", tokens, lease_ms=30000)
        self.assertTrue(prefill.ended.wait(120))
        return prefill

    def pulled(self, manifest, **options):
        num_blocks = -(-manifest.num_tokens // BLOCK)
        ids = list(range(num_blocks))
        layers = fused(num_blocks)
        with self.client.pull(manifest, layers, ids, timeout_s=60, **options) as pull:
            pull.wait()
        return [[view.rows(ids, head, manifest.num_tokens) for view in layer for head in range(NUM_KV_HEADS)] for layer in layers]

    def test_a_manifest_has_the_models_numbers_and_survives_its_json(self):
        manifest = self.prefilled(SHORT).result()
        for one in manifest, millrace_kv.Manifest(manifest.json()):
            self.assertEqual((one.num_layers, one.num_kv_heads, one.head_dim, one.dtype), (NUM_LAYERS, NUM_KV_HEADS, HEAD_DIM, "float32"))
            self.assertEqual((one.num_tokens, one.tp, one.cp, one.model, one.is_result), (len(SHORT), 2, 2, "fixture", True))
            self.assertEqual(sum(shard.num_tokens * shard.num_kv_heads for shard in one.shards()), len(SHORT) * NUM_KV_HEADS)
            self.assertEqual(one.logprobs()[0][0], one.first_token_id)

    def test_a_cache_that_is_kept_in_part_is_refused(self):
        status, _, response = self.service.prefill({"prompt_token_ids": SHORT}, kv_budget=0.5)
        self.assertEqual(status, 200, response)
        manifest = millrace_kv.Manifest(response)
        self.assertTrue(manifest.is_partial)
        self.assertFalse(self.prefilled(SHORT).result().is_partial)
        with self.assertRaisesRegex(millrace_kv.MillraceError, r"unsupported: .* kept in part \(kv_budget\)"):
            self.pulled(manifest)

    def test_layouts_tables_and_parts_bring_the_same_numbers(self):
        manifest = self.prefilled(SHORT).result()
        whole = self.pulled(manifest)
        mark = array.array("f", [MARK]).tobytes()
        self.assertFalse(any(row.startswith(mark) for layer in whole for rows in layer for row in rows))
        # Pulls only the second head, from token 32 on, into blocks in any order.
        num_tokens, num_blocks = len(SHORT) - 32, 100
        ids = random.Random(5).sample(range(num_blocks), -(-num_tokens // BLOCK))
        layers = apart(num_blocks)
        with self.client.pull(manifest, layers, ids, timeout_s=60, first_token=32, first_kv_head=1) as pull:
            pull.wait()
            self.assertEqual(pull.stats()["layers_done"], NUM_LAYERS)
        others = [block for block in range(num_blocks) if block not in ids]
        for (k0, k1, v0, v1), (k, v) in zip(whole, layers):
            self.assertEqual(k.rows(ids, 0, num_tokens), k1[32:])
            self.assertEqual(v.rows(ids, 0, num_tokens), v1[32:])
            self.assertEqual(set(k.rows(others, 0, len(others) * BLOCK)), {mark * HEAD_DIM})

    def test_one_that_did_not_post_follows_and_pulls_while_it_is_computed(self):
        prefill = self.coordinator.prefill("fixture", MEDIUM, lease_ms=30000)
        wait_until("the manifest", prefill.manifest, 60)
        follower = self.coordinator.follow(prefill.request_id)
        manifest = wait_until("the manifest", follower.manifest, 60)
        self.assertFalse(manifest.is_result)
        streamed = self.pulled(manifest, feed=follower.feed)
        self.assertTrue(prefill.ended.wait(60))
        self.assertTrue(streamed == self.pulled(prefill.result()))

    def test_who_posted_and_leaves_ends_the_pulls_of_those_that_follow(self):
        prefill = self.coordinator.prefill("fixture", MEDIUM)
        wait_until("the manifest", prefill.manifest, 60)
        follower = self.coordinator.follow(prefill.request_id)
        manifest = wait_until("the manifest", follower.manifest, 60)
        prefill.close()
        with self.assertRaises(millrace_kv.MillraceError) as caught:
            self.pulled(manifest, feed=follower.feed)
        self.assertIn(caught.exception.code, ("cancelled", "not_found", "peer_lost"))
        self.assertTrue(prefill.ended.wait(60))
        with self.assertRaises(millrace_kv.MillraceError):
            prefill.result()

    def test_a_prefill_is_finished_without_its_client_if_that_was_said(self):
        tokens = make_prompt(tokens_for(4096), seed=3)["prompt_token_ids"]
        prefill = self.coordinator.prefill("fixture", tokens, on_disconnect="finish")
        wait_until("the manifest", prefill.manifest, 60)
        prefill.close()
        self.assertTrue(prefill.ended.wait(60))
        with self.assertRaisesRegex(millrace_kv.MillraceError, "cancelled"):
            prefill.result()
        again = self.prefilled(tokens)
        self.addCleanup(self.coordinator.end, again.request_id)
        self.assertTrue(again.result().is_result)
        self.assertTrue(self.coordinator.call("GET", f"/v1/prefill/{again.request_id}")["joined"])

    def test_a_follower_that_leaves_ends_nothing(self):
        prefill = self.coordinator.prefill("fixture", MEDIUM, lease_ms=30000)
        wait_until("the manifest", prefill.manifest, 60)
        follower = self.coordinator.follow(prefill.request_id)
        wait_until("the manifest", follower.manifest, 60)
        follower.close()
        self.assertTrue(follower.ended.wait(60))
        self.assertTrue(prefill.ended.wait(120))
        self.assertTrue(prefill.result().is_result)

    def test_a_pull_that_is_cancelled_says_so(self):
        prefill = self.coordinator.prefill("fixture", MEDIUM, lease_ms=30000)
        manifest = wait_until("the manifest", prefill.manifest, 60)
        # This feed is never told of a layer.
        num_blocks = -(-manifest.num_tokens // BLOCK)
        feed = millrace_kv.Feed()
        pull = self.client.pull(manifest, fused(num_blocks), list(range(num_blocks)), timeout_s=60, feed=feed)
        with self.assertRaises(millrace_kv.Pending):
            pull.wait(0.0)
        pull.cancel()
        with self.assertRaises(millrace_kv.MillraceError) as caught:
            pull.wait()
        self.assertEqual(caught.exception.code, "cancelled")

    def test_an_ended_lease_and_a_foreign_one_are_not_found(self):
        prefill = self.prefilled(SHORT)
        manifest = prefill.result()
        self.coordinator.end(prefill.request_id)

        def refusal():
            try:
                self.pulled(manifest)
            except millrace_kv.MillraceError as refused:
                return refused
            return None  # the ranks have not heard of the end yet
        self.assertEqual(wait_until("the end of the lease", refusal, 20).code, "not_found")
        with self.assertRaises(millrace_kv.MillraceError) as caught:
            self.coordinator.release(prefill.request_id, "0" * 32)
        self.assertEqual(caught.exception.code, "not_found")

    def test_another_coordinator_behind_the_same_address_is_noticed_and_the_lease_outlives_the_restart(self):
        manifest = self.prefilled(SHORT).result()
        instance = manifest.coordinator_instance
        self.assertEqual(instance, self.coordinator.instance)
        self.assertEqual(millrace_kv.Manifest(manifest.json()).coordinator_instance, instance)
        named = manifest.request_id, manifest.lease_id
        self.assertGreater(self.coordinator.renew(*named, 30000, instance), 0)
        self.service.restart_coordinator()
        wait_until("the return of the group", self.service.ready, 60)
        for call in (lambda: self.coordinator.renew(*named, 30000, instance), lambda: self.coordinator.release(*named, instance),
                     lambda: self.coordinator.end(manifest.request_id, instance)):
            with self.assertRaisesRegex(millrace_kv.MillraceError, f'not_found: .*instance "{instance}"'):
                call()
        self.assertNotEqual(self.coordinator.instance, instance)
        # The ranks are those that made the manifest.
        self.assertEqual(len(self.pulled(manifest)), NUM_LAYERS)
        self.assertGreater(self.coordinator.renew(*named, 30000), 0)
        self.coordinator.release(*named, self.coordinator.instance)

    def test_the_end_of_a_prompt_reaches_only_the_process_that_took_it(self):
        done = self.prefilled(SHORT)
        lease_id = done.result().lease_id
        ranks = self.service.ranks().values()
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)  # so that the next prompt does not end
        running = self.coordinator.prefill("fixture", MEDIUM)
        wait_until("its start", lambda: running.instance, 60)
        self.service.restart_coordinator()
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)
        wait_until("the return of the group", self.service.ready, 60)
        with self.assertRaisesRegex(millrace_kv.MillraceError, f'not_found: .*instance "{running.instance}"'):
            self.coordinator.end(running.request_id)
        # A lease is named by its own id, which no other has.
        self.coordinator.end(done.request_id)
        with self.assertRaises(millrace_kv.MillraceError):
            self.coordinator.renew(done.request_id, lease_id, 30000)

    def test_what_does_not_fit_is_refused_by_name(self):
        manifest = self.prefilled(SHORT).result()
        num_blocks = -(-len(SHORT) // BLOCK)
        ids = list(range(num_blocks))

        def start(blocks=num_blocks, heads=NUM_KV_HEADS, tokens=BLOCK, dim=HEAD_DIM, typestr="<f4"):
            view = Memory(blocks * heads * tokens * dim).view((blocks, heads, tokens, dim), (heads * tokens * dim, tokens * dim, dim, 1), 0, typestr)
            return self.client.pull(manifest, [(view, view)] * NUM_LAYERS, ids, timeout_s=60)
        for code, shape in (("invalid_argument", {"dim": 64}), ("unsupported", {"typestr": "<i4"}), ("invalid_argument", {"typestr": "<f2"}),
                            ("invalid_argument", {"heads": 3}), ("invalid_argument", {"blocks": num_blocks - 1}), ("unsupported", {"tokens": 7})):
            with self.subTest(shape=shape), self.assertRaises(millrace_kv.MillraceError) as caught:
                start(**shape)
            self.assertEqual(caught.exception.code, code, caught.exception)
        for text in "", "{", '{"version": 1}':
            with self.subTest(text=text), self.assertRaises(millrace_kv.MillraceError):
                millrace_kv.Manifest(text)

    def test_refusals_and_a_coordinator_that_is_not_there_are_told(self):
        for model, tokens, code in (("other", SHORT, "not_found"), ("fixture", [0, 5000], "invalid_argument")):
            prefill = self.coordinator.prefill(model, tokens)
            self.assertTrue(prefill.ended.wait(60))
            self.assertEqual(prefill.error.code, code)
        nowhere = millrace_kv.Coordinator("127.0.0.1:9").prefill("fixture", SHORT)
        self.assertTrue(nowhere.ended.wait(60))
        self.assertEqual(nowhere.error.code, "peer_lost")
        self.assertIn("127.0.0.1:9", str(nowhere.error))

    def test_a_forecast_leaves_nothing_behind(self):
        def counted():
            return [line for line in self.service.get("/metrics")[2].splitlines() if line.startswith("millrace_prefill_requests_total")]
        before = counted()
        forecast = self.coordinator.forecast("fixture", MEDIUM, priority=2, cache_salt="tenant")
        self.assertEqual((forecast["num_tokens"], forecast["cached_tokens"]), (len(MEDIUM), 0))
        self.assertGreater(forecast["prefill_seconds"], 0)
        with self.assertRaises(millrace_kv.MillraceError) as failure:
            self.coordinator.forecast("fixture", [1 << 20])
        self.assertEqual((failure.exception.code, counted()), ("invalid_argument", before))

    def test_what_must_not_be_posted_is_not(self):
        def refuse(model):
            raise millrace_kv.MillraceError("unsupported", f"not {model}")
        prefill = self.coordinator.prefill("fixture", SHORT, before_post=refuse)
        self.assertTrue(prefill.ended.wait(60))
        self.assertEqual(str(prefill.error), "unsupported: not fixture")
        self.assertEqual(self.service.get(f"/v1/prefill/{prefill.request_id}")[0], 404)

    def test_prompts_have_names(self):
        # printf '\\0\\0\\0\\0\\1\\0\\0\\0' | sha256sum
        self.assertEqual(prompt_digest([0, 1]), "01acecb507abfe1a354aa8064f4af5d3f1acd019e37db3c11c97523b71c76e9d")
        self.assertNotEqual(prompt_digest([0, 1]), prompt_digest([1, 0]))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
