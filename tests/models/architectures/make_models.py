#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes small random checkpoints of the architectures that Millrace reads, with Transformers' results for them.

Every model is one of Transformers' own classes, made from a config and a fixed seed. Its weights are rounded to bfloat16
before anything is computed, in float32. Weights of 8 bits are rounded to e4m3 instead, and used as elements times
scales. Writes a folder for each model with config.json, model.safetensors, generation_config.json and golden.json
(format: ../make_golden.py and ../check_golden.py).

    make_models.py [NAME ...]        all, or those named, into the folders beside this script

Needs torch and transformers 5.19. The tests need neither, only the files that this writes.
"""

import json
import os
import random
import sys

import torch
import transformers
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))

SHAPE = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "bos_token_id": None,
         "eos_token_id": None, "pad_token_id": None, "attn_implementation": "eager"}
EOS = [90, 91]
LENGTHS = (70, 701)  # more than a row tile; several stripes, the last of them partial; several windows
MAX_TOKENS = 6
MORE_TOKENS = {"window_ministral": 45}  # until its window begins within the generated tokens
PROBES = 8
KV_SAMPLES = 24


def rope(**parameters):
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


# Phi-3 has no head_dim field; it is hidden / heads.
PHI3 = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": "none", "num_hidden_layers": 2}
LONGROPE = {"rope_type": "longrope", "partial_rotary_factor": 0.75, "short_factor": [1 + i / 16 for i in range(24)],
            "long_factor": [1 + i * i / 24 for i in range(24)]}

# Blocks of 128 that end within matrices, and slices of two ranks that end within blocks.
FLOAT8 = {"hidden_size": 160, "intermediate_size": 192, "num_hidden_layers": 2}
GROUPS = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
                      "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}}}
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
MINIMAX_LEFT_OUT = ["gate", "e_score_correction_bias", "lm_head"]
# For models in 8 bits: the rows and columns that share a scale (0: all), the suffix of the scale's name, the scales' dtype and
# shape, and what config.json or a file of its own says about the quantisation.
QUANTISED = {
    "float8_row": (1, 0, "_scale", torch.bfloat16, 2, {"quant_method": "compressed-tensors", "format": "float-quantized",
                                                       "ignore": ["lm_head"], "config_groups": GROUPS}),
    "float8_block": (128, 128, "_scale_inv", torch.float32, 2, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                                                "weight_block_size": [128, 128]}),
    "minimax-fp8": (128, 128, "_scale_inv", torch.float32, 2, {"quant_method": "fp8", "fmt": "float8_e4m3fn", "activation_scheme": "dynamic",
                                                               "weight_block_size": [128, 128], "modules_to_not_convert": MINIMAX_LEFT_OUT}),
    "float8_tensor": (0, 0, "_scale", torch.float32, 0, MODELOPT),
    "float8_fbgemm": (1, 0, "_scale", torch.float32, 2, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
                                                         "modules_to_not_convert": ["lm_head", "model.layers.0.self_attn"]}),
}
# Two kinds of layers: some have a window shorter than a row tile, the others scaled frequencies.
GEMMA3 = {"tie_word_embeddings": True, "num_hidden_layers": 2, "sliding_window": 37, "query_pre_attn_scalar": 40,
          "layer_types": ["sliding_attention", "full_attention"],
          "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                              "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 20000.0}}}
# Sinks, a clamp that takes effect, a window in layer 0, and frequencies whose borders are not whole dimensions.
GPT_OSS = {"num_hidden_layers": 2, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 37,
           "swiglu_limit": 0.75, "layer_types": ["sliding_attention", "full_attention"],
           **rope(rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=512)}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                             "model.embed_tokens", "lm_head"]}
GLM4 = {"num_hidden_layers": 2, "attention_bias": True, **rope(partial_rotary_factor=0.5, rope_type="default")}
GLM4_MOE = {**GLM4, "use_qk_norm": True, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 2,
            "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.75}
# Sigmoids, an MLP in layer 0, and a layer without a rotary embedding between two that have one.
HY3 = {"num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1, "moe_intermediate_size": 16,
       "router_scaling_factor": 1.75}
# Norms over all heads; half of each head is rotated, which the public files say in this field.
MINIMAX = {"num_hidden_layers": 2, "intermediate_size": 16, "num_local_experts": 8, "num_experts_per_tok": 2, "rotary_dim": 32}
# Blocks of 8 bits, and the fields of the public files.
MINIMAX_PUBLIC = {"intermediate_size": 48, "attn_type_list": [1, 1], "use_qk_norm": True, "qk_norm_type": "per_layer", "scoring_func": "sigmoid",
                  "use_routing_bias": True, "shared_intermediate_size": 0, "num_mtp_modules": 3, "mtp_transformer_layers": 1}
SMOLLM3 = {"no_rope_layers": [1, 0, 1], "tie_word_embeddings": False, **rope(rope_type="default")}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True, "num_key_value_heads": 2}
MIXTRAL = {"num_hidden_layers": 2, "intermediate_size": 16, "num_local_experts": 4}

MODELS = {
    "float8_row": ("Llama", FLOAT8),
    "float8_block": ("Qwen3", {**FLOAT8, "tie_word_embeddings": True}),
    "float8_tensor": ("Phi3", {**FLOAT8, "hidden_size": 256, "head_dim": "none"}),
    "float8_fbgemm": ("Mistral", {**FLOAT8, "sliding_window": None}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3-128": ("Qwen3", {"tie_word_embeddings": True, "num_hidden_layers": 2, "head_dim": 128}),  # as in the public models
    "llama3": ("Llama", rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64)),
    "linear": ("Llama", {"num_hidden_layers": 2, **rope(rope_type="linear", factor=4.0)}),
    "yarn": ("Qwen3", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=256)),
    # Windows that are not a multiple of a row tile, one of them shorter than one: in all layers, in the last ones, in some.
    "window_mistral": ("Mistral", {"sliding_window": 91}),
    "window_qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 150, "max_window_layers": 1, "attention_dropout": 0.0}),
    "window_ministral": ("Ministral", {"sliding_window": 37, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "gemma3": ("Gemma3", GEMMA3),
    "gemma3-256": ("Gemma3", {**GEMMA3, "head_dim": 256}),
    "glm4": ("Glm4", {**GLM4, "eos_token_id": EOS}),  # otherwise its class has some beyond this vocabulary
    "glm4-moe": ("Glm4Moe", GLM4_MOE),  # layer 0 has an MLP
    "gpt-oss": ("GptOss", GPT_OSS),
    "gpt-oss-mxfp4": ("GptOss", GPT_OSS),  # its experts' weights in 4 bits
    "hy3": ("HYV3", HY3),
    "minimax": ("MiniMaxM2", MINIMAX),
    "minimax-fp8": ("MiniMaxM2", {**MINIMAX, **FLOAT8, **MINIMAX_PUBLIC}),
    "seed-oss": ("SeedOss", {"num_hidden_layers": 2, "attention_bias": True, "attention_dropout": 0.0, "residual_dropout": 0.0}),
    "smollm3": ("SmolLM3", SMOLLM3),
    # The text model within a model for images and text.
    "gemma3-images": ("Gemma3", GEMMA3),
    "mistral3-images": ("Mistral", {"num_hidden_layers": 2, "sliding_window": None}),
    "longrope": ("Phi3", {**PHI3, "original_max_position_embeddings": 256, **rope(**LONGROPE)}),
    # Layer 1 has an MLP; in the other layers the experts' weights are a softmax over the chosen two.
    "qwen3moe": ("Qwen3Moe", {**EXPERTS, "mlp_only_layers": [1]}),
    # One expert per token, weighted by its share of the softmax over all experts; layers 1 and 3 have experts.
    "qwen3moe-one": ("Qwen3Moe", {**EXPERTS, "num_experts_per_tok": 1, "norm_topk_prob": False, "num_hidden_layers": 4,
                                  "decoder_sparse_step": 2}),
    # One expert that nearly all tokens choose, one that no token chooses, and a shared expert.
    "qwen2moe-skewed": ("Qwen2Moe", {**EXPERTS, "norm_topk_prob": False, "num_hidden_layers": 2, "shared_expert_intermediate_size": 24}),
    "mixtral": ("Mixtral", {**MIXTRAL, "num_experts_per_tok": 2}),
    "mixtral-all": ("Mixtral", {**MIXTRAL, "num_experts_per_tok": 4}),
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
WITH_IMAGES = {"gemma3-images": ("Gemma3", {"vision_config": VISION, "mm_tokens_per_image": 1}),
               "mistral3-images": ("Mistral3", {"vision_config": {**VISION, "model_type": "pixtral"}, "tie_word_embeddings": False})}
ADDS_ONE = {"gemma3_text"}  # to the weights of its norms
TEXT_CONFIGS = {"Gemma3": "Gemma3TextConfig"}  # others are called FamilyConfig
SKEWED = {"qwen2moe-skewed"}
# The least difference between the last chosen expert's logit and the next one. If rounding alone decided the choice, the reference would say
# nothing; float32's errors are some 1e-5.
MIN_MARGIN = 2e-4
# For models whose default seeds, made from their names, put the logits too close.
SEEDS = {"glm4-moe": 1, "gpt-oss": 1, "gpt-oss-mxfp4": 2, "minimax": 3, "minimax-fp8": 6}


def randomise(model, seed):
    """Sets weights that make every part matter: scores of a few nats, and norms and biases that are not 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config.get_text_config()
    with torch.no_grad():
        corrections = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("correction_bias")]
        for name, weight in sorted([*model.named_parameters(), *corrections]):
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight"):
                weight.copy_((0 if config.model_type in ADDS_ONE else 1) + 0.2 * noise)
            elif name.endswith("sinks"):
                weight.copy_(4 + 2 * noise)  # about the sum over the keys of a window
            elif weight.dim() == 1:
                weight.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                weight.copy_(noise * (0.05 if config.tie_word_embeddings else 1))  # otherwise a row would predict itself
            else:
                gain = 2 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "gate.weight", "router")) else 1
                weight.copy_(noise * gain / weight.shape[-1] ** 0.5)
            weight.copy_(weight.to(torch.bfloat16))


def tensors_of(model):
    """(name in the file, view) of all tensors; for models whose files differ from Transformers' classes, as in the files."""
    for key, weight in model.state_dict().items():
        if model.config.model_type != "minimax_m2":
            yield key, weight
            continue
        key = key.replace(".mlp.", ".block_sparse_moe.")
        experts, _, kind = key.rpartition(".")
        for e in range(len(weight) if kind in ("gate_up_proj", "down_proj") else 0):
            parts = [("w2", weight[e])] if kind == "down_proj" else zip(("w1", "w3"), weight[e].chunk(2))
            yield from ((f"{experts}.{e}.{part}.weight", view) for part, view in parts)
        if kind not in ("gate_up_proj", "down_proj"):
            yield key, weight


def quantise(model, name):
    """Rounds the projections to e4m3 times scales. Returns the tensors of the checkpoint."""
    block_rows, block_cols, suffix, dtype, dims, config = QUANTISED[name]
    tensors = {}
    for key, weight in tensors_of(model):
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        tensors[key] = weight.to(torch.bfloat16)
        left_out = any(key.startswith(module) for module in config.get("modules_to_not_convert", []))
        if not key.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")) or left_out:
            continue
        rows, cols = weight.shape
        height, width = block_rows or rows, block_cols or cols
        scales = torch.zeros(-(-rows // height), -(-cols // width))
        elements = torch.zeros(rows, cols, dtype=torch.float8_e4m3fn)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                place = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
                scales[i, j] = (weight[place].abs().max() / 448).to(dtype)
                elements[place] = (weight[place] / scales[i, j]).clamp(-448, 448).to(torch.float8_e4m3fn)
                weight[place] = elements[place].float() * scales[i, j]
        tensors[key] = elements
        tensors[key + suffix] = scales.to(dtype) if dims else scales[0, 0].to(dtype)
        tensors[key.replace("weight", "input_scale")] = torch.tensor(0.5)  # of activations: has no effect here
    return tensors


def pack_mxfp4(model):
    """Rounds the experts to 4 bits times powers of two, decoded by Transformers itself. Returns the tensors of the checkpoint."""
    from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors
    tensors = {}
    for key, weight in model.state_dict().items():
        if not key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[key] = weight.to(torch.bfloat16)
            continue
        groups = weight.transpose(1, 2).reshape(weight.shape[0], weight.shape[2], -1, 32)  # [expert, out, in / 32, 32]
        exponents = torch.floor(torch.log2(groups.abs().amax(-1))) - 2  # the largest element becomes 4 to 8, and 6 at most
        scaled = groups / torch.exp2(exponents)[..., None]
        codes = (scaled[..., None] - torch.tensor(FP4_VALUES)).abs().argmin(-1).to(torch.uint8)
        tensors[key + "_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        tensors[key + "_scales"] = (exponents + 127).to(torch.uint8)
        weight.copy_(convert_moe_packed_tensors(tensors[key + "_blocks"], tensors[key + "_scales"], dtype=torch.float32))
    return tensors


def drop_fields(folder, *names):
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        fields = json.load(file)
    for name in names:
        del fields[name]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(fields, file, indent=2)
        file.write("\n")


def write_quantised(folder, tensors, config):
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        fields = json.load(file)
    if config is MODELOPT:
        path = os.path.join(folder, "hf_quant_config.json")
        fields = config
    else:
        fields["quantization_config"] = config
    with open(path, "w", encoding="utf-8") as file:
        json.dump(fields, file, indent=2)
        file.write("\n")
def skew(model):
    """Gives all tokens a common component; the router's row of the first expert points along it, that of the last expert against it."""
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 8
        for layer in model.model.layers:
            layer.post_attention_layernorm.weight[0] = 1
            layer.mlp.gate.weight[:, 0] = 0
            layer.mlp.gate.weight[0, 0], layer.mlp.gate.weight[-1, 0] = 2, -4


def watch_routers(model):
    """For each layer, (the deciding values [rows, experts], the chosen experts [rows, k]) of the last forward pass."""
    routers = [module for name, module in model.named_modules() if name.endswith((".gate", ".router"))]
    seen = [None] * len(routers)

    def scores(module, inputs, logits):
        correction = inputs[1] if len(inputs) > 1 else getattr(module, "e_score_correction_bias", None)
        return logits if correction is None else logits.sigmoid() + correction

    def watch(i):
        routers[i].register_forward_hook(
            lambda module, inputs, output: seen.__setitem__(i, (scores(module, inputs, output[0].detach()), output[2])))
    for i in range(len(routers)):
        watch(i)
    return seen


def check_routers(name, seen):
    for logits, chosen in seen:
        k, counts = chosen.shape[1], torch.bincount(chosen.flatten(), minlength=logits.shape[1]).tolist()
        ordered = logits.sort(descending=True).values
        margin = float((ordered[:, k - 1] - ordered[:, k]).min()) if k < logits.shape[1] else float("inf")
        print(f"{name}: rows of each expert {counts}, smallest margin {margin:.5f}")
        assert margin >= MIN_MARGIN, "another seed"
        assert name not in SKEWED or (counts[0] > 0.9 * len(logits) and counts[-1] == 0)


def top_logits(row):
    ids = torch.argsort(row, descending=True, stable=True)[:10]
    return [[int(i), round(float(row[i]), 5)] for i in ids]


def golden(name, model, ids, rng, max_tokens):
    config = model.config.get_text_config()
    routers = watch_routers(model)
    with torch.no_grad():
        out = model(torch.tensor([ids]), use_cache=True, past_key_values=transformers.DynamicCache())
        logits = out.logits[0]
        check_routers(name, routers)
        layers = out.past_key_values.layers
        generated = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
                                   max_new_tokens=max_tokens, do_sample=False, eos_token_id=EOS)[0, len(ids):].tolist()
    probes = sorted(rng.sample(range(len(ids) - 1), PROBES))
    targets = [rng.randrange(config.vocab_size) for _ in probes]
    logprobs = torch.log_softmax(logits.double(), -1)
    samples = []
    for _ in range(KV_SAMPLES):
        layer, head = rng.randrange(len(layers)), rng.randrange(config.num_key_value_heads)
        dim = rng.randrange(layers[layer].keys.shape[-1] - 3)
        token = rng.randrange(len(ids))
        sample = {"layer": layer, "kv_head": head, "token": token, "dim": dim}
        for kind, tensor in (("k", layers[layer].keys), ("v", layers[layer].values)):
            sample[kind] = [round(float(x), 6) for x in tensor[0, head, token, dim:dim + 4]]
        samples.append(sample)
    return {"prompt_token_ids": ids, "last_logits_top10": top_logits(logits[-1]), "kv_samples": samples,
            "generated_token_ids": generated, "probe_positions": probes, "probe_target_ids": targets,
            "probe_logprobs": [round(float(logprobs[p, t]), 6) for p, t in zip(probes, targets)]}


def make(name):
    family, changes = MODELS[name]
    seed = SEEDS.get(name, sum(name.encode()))
    shape = {**SHAPE, **changes}
    config = getattr(transformers, TEXT_CONFIGS.get(family, family + "Config"))(**{field: value for field, value in shape.items() if value != "none"})
    if name in WITH_IMAGES:
        family, around = WITH_IMAGES[name]
        config = getattr(transformers, family + "Config")(text_config=config.to_dict(), **around)
    model = getattr(transformers, family + ("ForConditionalGeneration" if name in WITH_IMAGES else "ForCausalLM"))(config).float().eval()
    randomise(model, seed)
    if name in SKEWED:
        skew(model)
    with torch.no_grad():
        tensors = pack_mxfp4(model) if "mxfp4" in name else quantise(model, name) if name in QUANTISED else None
    rng = random.Random(seed)
    prompts = [[rng.randrange(80) for _ in range(length)] for length in LENGTHS]
    entries = [golden(name, model, ids, rng, MORE_TOKENS.get(name, MAX_TOKENS)) for ids in prompts]
    folder = os.path.join(HERE, name)
    model.generation_config = transformers.GenerationConfig(eos_token_id=EOS)
    model.to(torch.bfloat16).save_pretrained(folder)
    if name == "window_qwen2":
        drop_fields(folder, "layer_types")  # as in older files, where max_window_layers says it
    if name == "minimax-fp8":
        drop_fields(folder, "partial_rotary_factor", "rope_parameters")  # as in public files, where rotary_dim says it
    if tensors:
        write_quantised(folder, tensors, MXFP4 if "mxfp4" in name else QUANTISED[name][-1])
    os.chmod(os.path.join(folder, "model.safetensors"), 0o644)
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as file:
        json.dump(entries, file)
        file.write("\n")
    print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters, generated {[e['generated_token_ids'] for e in entries]}")


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        make(name)
