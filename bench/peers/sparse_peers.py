# SPDX-License-Identifier: Apache-2.0
"""Sparse attention of other projects, where installed: 4 heads of 128 with their own K and V, bfloat16.

MInference: vertical-slash with given sets (its index conversion is part of the time) and block-sparse with pooling and top-k.
"""

import importlib.util

import torch

from cuda_timing import time_calls

HEADS = 4
HEAD_DIM = 128
BUDGETS = [(1000, 6096), (500, 700)]
TOP_BLOCKS = 100

_missing = {}


def missing():
    """Which peers could not be timed, and why."""
    return _missing


def index_sets(tokens, verticals, slashes, generator):
    """Returns the first 30 columns and random ones, and offsets: a third from 0 on, the rest in random runs of 64."""
    columns, offsets = [], []
    for _ in range(HEADS):
        others = 30 + torch.randperm(tokens - 30, generator=generator)[: verticals - 30]
        columns.append(torch.cat([torch.arange(30), others]).sort().values)
        runs = (slashes - slashes // 3) // 64
        starts = torch.randint(slashes // 3, tokens - 64, (runs,), generator=generator)
        run_offsets = (starts[:, None] + torch.arange(64)).flatten().unique()
        local = torch.arange(slashes // 3)
        found = torch.cat([local, run_offsets]).unique()
        # Overlapping runs leave a head with fewer offsets; all heads need the same number.
        offsets.append(torch.cat([found, found[-1:].expand(slashes - len(found))]) if len(found) < slashes
                       else found[:slashes])
    stack = [torch.stack(values)[None].to("cuda", torch.int32) for values in (columns, offsets)]
    return stack[0], stack[1]


def _minference():
    if importlib.util.find_spec("minference") is None:
        _missing["MInference"] = "no module named minference"
        return None
    try:
        from minference.ops.block_sparse_flash_attention import block_sparse_attention
        from minference.ops.pit_sparse_flash_attention_v2 import vertical_slash_sparse_attention
    except Exception as error:  # whatever its dependencies raise
        _missing["MInference"] = str(error).splitlines()[0]
        return None
    return vertical_slash_sparse_attention, block_sparse_attention


def time_all(tokens, samples):
    peer = _minference()
    if peer is None:
        return []
    vertical_slash, block_sparse = peer
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, HEADS, tokens, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    rows = []
    for verticals, slashes in BUDGETS:
        columns, offsets = index_sets(tokens, verticals, slashes, generator)
        ms = time_calls(lambda: vertical_slash(q, k, v, columns, offsets), samples)
        rows.append({"what": "given sets", "setting": f"{verticals},{slashes}", "tokens": tokens,
                     "who": "MInference", "ms": ms})
    ms = time_calls(lambda: block_sparse(q, k, v, TOP_BLOCKS), samples)
    rows.append({"what": "block-sparse", "setting": f"top {TOP_BLOCKS}", "tokens": tokens, "who": "MInference",
                 "ms": ms})
    return rows
