# SPDX-License-Identifier: Apache-2.0
"""What convert_gguf.py must know of Gemma 3 text models in GGUF, with their SentencePiece tokenizer."""

OF_LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_output": "self_attn.o_proj",
            "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm", "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "post_ffw_norm": "post_feedforward_layernorm"}
OF_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}

# The GGUF file says neither; these are what Gemma 3 text models have. Every sixth layer attends to everything before it, the others to a window.
LAYERS_PER_FULL_ONE = 6
ROPE_THETA_OF_WINDOWS = 10000.0

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # in tokenizer.ggml.token_type
SPACE = "\u2581"  # stands for a space in SentencePiece


def hugging_face_name(name):
    stem = name.removesuffix(".weight")
    if stem in OF_MODEL:
        return OF_MODEL[stem] + ".weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{OF_LAYER[part]}.weight"


def read_weights(gguf):
    """A norm multiplies by 1 + w; Hugging Face stores w, GGUF 1 + w."""
    for name in gguf.tensor_names:
        yield hugging_face_name(name), gguf.tensor(name) - (1 if name.endswith("norm.weight") else 0)


def config(fields, dtype, tied, rope_theta=None, max_positions=None):
    layers, head_dim = fields["gemma3.block_count"], fields["gemma3.attention.key_length"]
    return {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "torch_dtype": dtype,
            "vocab_size": len(fields["tokenizer.ggml.tokens"]), "hidden_size": fields["gemma3.embedding_length"],
            "intermediate_size": fields["gemma3.feed_forward_length"], "num_hidden_layers": layers,
            "num_attention_heads": fields["gemma3.attention.head_count"], "num_key_value_heads": fields["gemma3.attention.head_count_kv"],
            "head_dim": head_dim, "query_pre_attn_scalar": head_dim,  # the same in all of them but the largest
            "max_position_embeddings": max_positions or fields["gemma3.context_length"],
            "rope_theta": rope_theta or fields["gemma3.rope.freq_base"], "rope_local_base_freq": ROPE_THETA_OF_WINDOWS,
            "sliding_window": fields["gemma3.attention.sliding_window"],
            "layer_types": ["sliding_attention" if (layer + 1) % LAYERS_PER_FULL_ONE else "full_attention" for layer in range(layers)],
            # The file has 1e-6 rounded to float32.
            "rms_norm_eps": float(f"{fields['gemma3.attention.layer_norm_rms_epsilon']:.6g}"),
            "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None,
            "tie_word_embeddings": tied, "bos_token_id": fields["tokenizer.ggml.bos_token_id"], "eos_token_id": fields["tokenizer.ggml.eos_token_id"]}


def _merges(tokens, wanted):
    """The ways of making each wanted token of two others. What comes first here is merged first."""
    known = set(tokens)
    return [[token[:i], token[i:]] for token in wanted for i in range(1, len(token)) if token[:i] in known and token[i:] in known]


def tokenizer(fields):
    """tokenizer.json: byte pairs that are merged in the order of their scores, with a space at the beginning of words."""
    if (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.add_space_prefix"]) != ("llama", False):
        raise ValueError("the tokenizer is not Gemma's")
    kinds, scores, bos = fields["tokenizer.ggml.token_type"], fields["tokenizer.ggml.scores"], fields["tokenizer.ggml.bos_token_id"]
    # The tokens of several spaces have real spaces in GGUF.
    tokens = [token.replace(" ", SPACE) for token in fields["tokenizer.ggml.tokens"]]
    normal = sorted((i for i, kind in enumerate(kinds) if kind == NORMAL), key=lambda i: -scores[i])
    spaces = [token for token, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED and not token.strip(SPACE)]
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": kind == CONTROL}
             for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
             if kind == CONTROL or (kind == USER_DEFINED and token.strip(SPACE))]
    begin = {"SpecialToken": {"id": tokens[bos], "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    return {"version": "1.0", "added_tokens": added, "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            "pre_tokenizer": None,
            "post_processor": {"type": "TemplateProcessing", "single": [begin, first], "pair": [begin, first, second],
                               "special_tokens": {tokens[bos]: {"id": tokens[bos], "ids": [bos], "tokens": [tokens[bos]]}}},
            "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                                                         {"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {"type": "BPE", "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]], "fuse_unk": True, "byte_fallback": True,
                      "vocab": {token: i for i, token in enumerate(tokens)},
                      "merges": _merges(tokens, spaces) + _merges(tokens, (tokens[i] for i in normal))}}
