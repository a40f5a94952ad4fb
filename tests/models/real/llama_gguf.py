# SPDX-License-Identifier: Apache-2.0
"""What convert_gguf.py must know of Llama models in GGUF, with the byte-level tokenizer of SmolLM."""

OF_LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
OF_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL_TOKEN = 3  # in tokenizer.ggml.token_type


def hugging_face_name(name):
    stem = name.removesuffix(".weight")
    if stem in OF_MODEL:
        return OF_MODEL[stem] + ".weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{OF_LAYER[part]}.weight"


def halves_turned(weight, num_heads):
    """Reorders rows of Q and K: GGUF's Llama rotates neighbours (0, 1), (2, 3), ..; Hugging Face's rotates i with i + dim/2."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, -1, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def read_weights(gguf):
    heads = {"attn_q": gguf.fields["llama.attention.head_count"], "attn_k": gguf.fields["llama.attention.head_count_kv"]}
    for name in gguf.tensor_names:
        weight = gguf.tensor(name)
        part = name.split(".")[-2]
        yield hugging_face_name(name), halves_turned(weight, heads[part]) if part in heads else weight


def config(fields, dtype, tied, rope_theta=None, max_positions=None):
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": dtype, "vocab_size": len(fields["tokenizer.ggml.tokens"]),
            "hidden_size": hidden, "intermediate_size": fields["llama.feed_forward_length"], "num_hidden_layers": fields["llama.block_count"],
            "num_attention_heads": heads, "num_key_value_heads": fields["llama.attention.head_count_kv"], "head_dim": hidden // heads,
            "max_position_embeddings": max_positions or fields["llama.context_length"],
            "rope_theta": rope_theta or fields["llama.rope.freq_base"],
            # The file has 1e-5 rounded to float32.
            "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
            "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": tied,
            "bos_token_id": fields["tokenizer.ggml.bos_token_id"], "eos_token_id": fields["tokenizer.ggml.eos_token_id"]}


def tokenizer(fields):
    """tokenizer.json: digits one by one, then byte-level BPE with GPT-2's splitting of words."""
    if (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise ValueError(f"tokenizer {fields['tokenizer.ggml.model']}, {fields['tokenizer.ggml.pre']}; known is gpt2, smollm")
    tokens = fields["tokenizer.ggml.tokens"]
    special = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i, (token, kind) in enumerate(zip(tokens, fields["tokenizer.ggml.token_type"])) if kind == CONTROL_TOKEN]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "added_tokens": special, "normalizer": None, "post_processor": None, "decoder": byte_level,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
            "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)},
                      "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]]}}
