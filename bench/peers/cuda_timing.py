# SPDX-License-Identifier: Apache-2.0
"""Measures the milliseconds that a call takes on the GPU, with calls back to back between two events."""

import statistics

import torch

SAMPLE_MS = 50


def _sample_ms(call, num_calls):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(num_calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / num_calls


def time_calls(call, samples):
    """Returns the median over samples of at least SAMPLE_MS; the first call compiles and warms up."""
    call()
    once_ms = _sample_ms(call, 1)
    num_calls = max(1, min(10000, int(SAMPLE_MS / max(once_ms, 1e-4)) + 1))
    return statistics.median(_sample_ms(call, num_calls) for _ in range(samples))
