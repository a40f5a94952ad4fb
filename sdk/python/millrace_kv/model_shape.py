# SPDX-License-Identifier: Apache-2.0
"""The numbers in which a Millrace cache and a vLLM cache must agree, and the vLLM caches that a Millrace cache cannot fill."""
from dataclasses import dataclass

# The dtype of a cache whose pages are decoded into the model's type as they are pulled.
FLOAT8 = "float8_e4m3"
# Llama 3 8B's, for a model whose configuration does not say.
_USUAL_BALANCE_TOKENS = 26624


@dataclass(frozen=True)
class ModelShape:
    num_layers: int
    num_kv_heads: int  # of the whole model
    head_dim: int
    dtype: str
    vocab_size: int

    @staticmethod
    def of(vllm_config):
        model = vllm_config.model_config
        return ModelShape(model.get_total_num_hidden_layers(), model.get_total_num_kv_heads(), model.get_head_size(),
                          str(model.dtype).removeprefix("torch."), model.get_vocab_size())

    def _differences(self, pairs):
        return ", ".join(f"{name} {theirs} and not {ours}" for name, theirs, ours in pairs if theirs != ours)

    def difference_to_manifest(self, manifest):
        """Why a cache with this manifest is not this model's; "" if it is."""
        names = ["num_layers", "num_kv_heads", "head_dim"]
        if manifest.dtype != FLOAT8:
            names.append("dtype")
        return self._differences((name, getattr(manifest, name), getattr(self, name)) for name in names)

    def difference_to_offer(self, offer):
        """The same for an entry of GET /v1/models. Its dtype is what the group computes in; only the manifest says if pages are in 8-bit floats."""
        return self._differences((name, offer.get(name), getattr(self, name)) for name in ("num_layers", "dtype", "vocab_size"))


def balance_tokens(vllm_config):
    """Behind how many tokens a token's attention multiplies as many numbers as the rest of a layer: from the sizes in the model's configuration."""
    model = vllm_config.model_config
    config = getattr(model, "hf_text_config", None)

    def size(*names):
        return next((value for value in (getattr(config, name, None) for name in names) if isinstance(value, int) and value > 0), 0)
    hidden, heads, head_dim = size("hidden_size"), size("num_attention_heads"), model.get_head_size()
    inner = size("moe_intermediate_size", "intermediate_size") * max(1, size("num_experts_per_tok"))
    if not (hidden and heads and inner):
        return _USUAL_BALANCE_TOKENS
    attention = heads * head_dim
    linear = hidden * (2 * attention + 2 * model.get_total_num_kv_heads() * head_dim) + 3 * hidden * inner
    return linear / (2 * attention)


def why_left_to_vllm(vllm_config, kv_cache_config):
    """Why no cache can be pulled into this engine at all; "" if caches can."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    from .vllm_parts import keeps_every_token, layer_specs
    parallel = vllm_config.parallel_config
    for name in "pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size":
        size = getattr(parallel, name, 1)
        if size > 1:
            return f"{name} is {size}"
    if len(kv_cache_config.kv_cache_groups) != 1:
        return f"this model has {len(kv_cache_config.kv_cache_groups)} kinds of KV cache"
    shape = ModelShape.of(vllm_config)
    group = kv_cache_config.kv_cache_groups[0]
    if len(group.layer_names) != shape.num_layers:
        return f"the KV cache has {len(group.layer_names)} layers, the model {shape.num_layers}: those of a draft model are not pulled"
    for spec in layer_specs(group.kv_cache_spec):
        if type(spec) is not FullAttentionSpec or spec.sliding_window or spec.attention_chunk_size or not keeps_every_token(spec):
            return f"its attention is not full attention over K and V ({type(spec).__name__})"
        if spec.kv_quant_mode.value != 0 or str(spec.dtype).removeprefix("torch.") != shape.dtype:
            return f"the KV cache is kept as {vllm_config.cache_config.cache_dtype} ({spec.dtype}), the model computes in {shape.dtype}"
        if (spec.head_size, spec.head_size_v) != (shape.head_dim, shape.head_dim):
            return f"K and V heads of {spec.head_size} and {spec.head_size_v}"
    return ""
