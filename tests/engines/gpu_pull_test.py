#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pulls of the Python package into torch tensors on GPUs, from the device pool of a rank on the first GPU: as each rank of a vLLM with tensor
parallel 1, 2 and 4 pulls its heads. Skipped without a GPU.

    MILLRACE_GPU_STORED_RANK=build/release/bin/gpu_stored_rank gpu_pull_test.py"""
import os
import subprocess
import unittest

import torch
from millrace_kv.client import Client, Manifest

RANK = os.environ.get("MILLRACE_GPU_STORED_RANK")
LAYERS, TOKENS, BLOCK_TOKENS = 3, 700, 16


@unittest.skipUnless(RANK and torch.cuda.is_available(), "needs a GPU, and MILLRACE_GPU_STORED_RANK")
class GpuPullTest(unittest.TestCase):
    def setUp(self):
        self.rank = subprocess.Popen([RANK, "0", str(LAYERS), str(TOKENS), "0", "-1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.rank.wait)
        self.addCleanup(self.rank.stdout.close)
        self.addCleanup(self.rank.stdin.close)
        line = self.rank.stdout.readline()
        self.assertTrue(line.startswith("manifest "), line)
        self.manifest = Manifest(line.removeprefix("manifest "))
        self.client = Client(num_threads=2)
        self.addCleanup(self.client.close)

    def pulled(self, device, first_head, num_heads):
        """Two pulls, of which the first tells the client where to ask: vLLM's blocks by layer, and the statistics of the second."""
        blocks = -(-TOKENS // BLOCK_TOKENS)
        ids = [blocks - 1 - block for block in range(blocks)]
        for _ in range(2):
            caches = [torch.full((blocks, num_heads, BLOCK_TOKENS, 2 * self.manifest.head_dim), -1.0, dtype=torch.bfloat16, device=device)
                      for _ in range(LAYERS)]
            if device != "cpu":
                torch.cuda.synchronize(device)
            halves = [cache.split(self.manifest.head_dim, dim=3) for cache in caches]
            with self.client.pull(self.manifest, halves, ids, timeout_s=60, first_kv_head=first_head) as pull:
                pull.wait()
                stats = pull.stats()
        return [cache.cpu() for cache in caches], stats

    def test_every_rank_of_an_engine_gets_its_heads_from_the_pool(self):
        heads = self.manifest.num_kv_heads
        expected, _ = self.pulled("cpu", 0, heads)
        for gpu in range(min(2, torch.cuda.device_count())):
            for ranks in 1, 2, 4:
                for rank in range(ranks):
                    own = slice(rank * heads // ranks, (rank + 1) * heads // ranks)
                    with self.subTest(gpu=gpu, ranks=ranks, rank=rank):
                        caches, stats = self.pulled(f"cuda:{gpu}", own.start, own.stop - own.start)
                        print(f"GPU 0 to {gpu}, rank {rank} of {ranks}: {stats['bytes_device_pool']} of {stats['bytes']} bytes from the device pool")
                        self.assertEqual(stats["bytes_device_pool"], stats["bytes"])
                        self.assertEqual(stats["corrupt_pages"], 0)
                        for cache, whole in zip(caches, expected):
                            self.assertTrue(torch.equal(cache.view(torch.int16), whole[:, own].contiguous().view(torch.int16)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
