# SPDX-License-Identifier: Apache-2.0
"""Dense causal attention as PyTorch has it: 8 heads of 128, bfloat16."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from cuda_timing import time_calls

HEADS = 8
HEAD_DIM = 128
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION}

_missing = {}


def missing():
    """Which peers could not be timed, and why."""
    return _missing


def time_all(tokens, samples):
    q, k, v = (torch.randn(1, HEADS, tokens, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    rows = []
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(backend):
                ms = time_calls(lambda: scaled_dot_product_attention(q, k, v, is_causal=True), samples)
        except RuntimeError as error:
            _missing[name] = str(error).splitlines()[0]
            continue
        flops = 4 * HEADS * HEAD_DIM * tokens * (tokens + 1) / 2
        rows.append({"what": "dense", "setting": "", "tokens": tokens, "who": name, "ms": ms,
                     "tflops": 1e-9 * flops / ms})
    return rows
