# SPDX-License-Identifier: Apache-2.0
"""Loads a prompt that Millrace prefilled into the cache of a transformers model.

    from millrace_kv.transformers import prefill
    cache, result = prefill("host:8000", "llama-3-8b", input_ids[0].tolist())
    model.generate(input_ids, past_key_values=cache, max_new_tokens=100)

The cache lacks the prompt's last token, which the model has to see in order to continue. One sequence at a time. The model is not compared with
the coordinator's: K and V of another model of the same shape give nonsense."""
import time

import torch
from transformers import DynamicCache

from .client import Client
from .coordinator import Coordinator

_BLOCK_TOKENS = 64


def pull_cache(client, manifest, *, num_tokens=None, feed=None, timeout_s=600.0, device=None, float8_dtype=torch.bfloat16):
    """The first tokens of a cache (all but the prompt's last one by default) as a DynamicCache. With a feed, layers are pulled during the prefill.
    `float8_dtype`: the type into which a cache in 8-bit floats is decoded."""
    num_tokens = manifest.num_tokens - 1 if num_tokens is None else num_tokens
    num_blocks = -(-num_tokens // _BLOCK_TOKENS)
    shape = (manifest.num_kv_heads, num_blocks * _BLOCK_TOKENS, manifest.head_dim)
    is_float8 = manifest.dtype == "float8_e4m3"
    dtype = float8_dtype if is_float8 else getattr(torch, manifest.dtype)
    layers = [[torch.empty(shape, dtype=dtype) for _ in "kv"] for _ in range(manifest.num_layers)]

    def in_blocks(tensor):
        return tensor.view(shape[0], num_blocks, _BLOCK_TOKENS, shape[2]).transpose(0, 1)

    destinations = [tuple(map(in_blocks, layer)) for layer in layers]
    cache = DynamicCache()
    with client.pull(manifest, destinations, range(num_blocks), num_tokens=num_tokens, feed=feed, timeout_s=timeout_s,
                     decode_float8=is_float8) as pull:
        for index, layer in enumerate(layers):
            pull.wait_layer(index)
            k, v = (tensor[None, :, :num_tokens].to(device) for tensor in layer)
            cache.update(k, v, index)
        pull.wait()
    return cache


def prefill(coordinator, model, token_ids, *, client=None, timeout_s=600.0, device=None, float8_dtype=torch.bfloat16, **options):
    """Returns (cache, manifest of the result) and releases the lease. `options` are those of Coordinator.prefill."""
    coordinator = Coordinator(coordinator) if isinstance(coordinator, str) else coordinator
    own = None if client else Client()
    events = coordinator.prefill(model, token_ids, **options)
    try:
        deadline = time.monotonic() + timeout_s
        manifest = events.manifest(timeout_s)
        if manifest is None:
            raise TimeoutError(f"no manifest within {timeout_s:g} s")
        cache = pull_cache(client or own, manifest, feed=events.feed, timeout_s=max(deadline - time.monotonic(), 0.001), device=device,
                           float8_dtype=float8_dtype)
        events.ended.wait(max(deadline - time.monotonic(), 0))
        result = events.result()
        coordinator.end(events.request_id, result.coordinator_instance)
        return cache, result
    finally:
        events.close()
        if own:
            own.close()
