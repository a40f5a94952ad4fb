# SPDX-License-Identifier: Apache-2.0
"""What differs among the versions of vLLM, found by what the installed one has and never by its number."""
import inspect

import torch
from vllm.platforms import current_platform
from vllm.v1 import kv_cache_interface

# Overrides that matter only where vLLM asks for them.
_OPTIONAL = frozenset({"requires_kv_delivery", "get_required_kvcache_layout"})


def why_unfit(connector):
    """What this vLLM lacks that the connector's class needs; "" if it lacks nothing."""
    for name, ours in vars(connector).items():
        ours = getattr(ours, "__func__", ours)
        if name.startswith("_") or name in _OPTIONAL or not inspect.isfunction(ours):
            continue
        theirs = next((vars(base)[name] for base in connector.__mro__[1:] if name in vars(base)), None)
        theirs = getattr(theirs, "__func__", theirs)
        if theirs is None:
            return f"its connectors have no {name}()"
        known = inspect.signature(ours).parameters
        for parameter in inspect.signature(theirs).parameters.values():
            required = parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if required and parameter.name not in known:
                return f"it passes {parameter.name} to {name}()"
    return ""


def layer_specs(spec):
    """The KV cache specs of the layers that a group's spec stands for: one for all of them, or one each."""
    if isinstance(spec, kv_cache_interface.UniformTypeKVCacheSpecs):
        return list(spec.kv_cache_specs.values())
    return [spec]


def keeps_every_token(spec):
    """Whether the cache has one entry a token. Versions without `tokens_per_state` know no other caches of full attention."""
    return getattr(spec, "tokens_per_state", 1) == 1


def _packs_whole_caches():
    """Whether pack_kv_cache() reads K and V from the cache itself. Earlier ones take them apart from it."""
    return "kv_cache" in inspect.signature(current_platform.pack_kv_cache).parameters


def pack_blocks(cache, ids):
    """Reorders blocks of a cache [blocks, kv heads, tokens, 2 x head dim] on a CPU from this layout into the one that its attention reads."""
    index = torch.tensor(ids, dtype=torch.int64)
    if _packs_whole_caches():
        current_platform.pack_kv_cache(cache, index)
        return
    blocks, heads, tokens, width = cache.shape
    k, v = cache.index_select(0, index).chunk(2, dim=3)
    # The attention keeps a block's K before its V.
    k_cache, v_cache = cache.view(blocks, heads, 2 * tokens, width // 2).chunk(2, dim=2)
    current_platform.pack_kv_cache(k, v, k_cache, v_cache, ids, index)
