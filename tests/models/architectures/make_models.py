#!/usr/bin/env python3
"""Small random checkpoints of the architectures that Millrace reads, and what Transformers computes of them.

Every model is one of Transformers' own classes, made of a config and a fixed seed; its weights are rounded to bfloat16
before anything is computed, in float32. Writes for each a folder with config.json, model.safetensors,
generation_config.json and golden.json (format: ../make_golden.py and ../check_golden.py).

    make_models.py [NAME ...]        all, or those named, into the folders beside this script

Needs torch and transformers 5.19; the tests need neither, only what this wrote.
"""

import json
import os
import random
import sys

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))

SHAPE = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "bos_token_id": None,
         "eos_token_id": None, "pad_token_id": None, "attn_implementation": "eager"}
EOS = [90, 91]
LENGTHS = (70, 701)  # more than a row tile; several stripes, the last one partial
MAX_TOKENS = 6
PROBES = 8
KV_SAMPLES = 24


def rope(**parameters):
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


# Phi-3 has no head_dim field: hidden / heads.
PHI3 = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": "none", "num_hidden_layers": 2}
LONGROPE = {"rope_type": "longrope", "partial_rotary_factor": 0.75, "short_factor": [1 + i / 16 for i in range(24)],
            "long_factor": [1 + i * i / 24 for i in range(24)]}

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True, "num_key_value_heads": 2}
MIXTRAL = {"num_hidden_layers": 2, "intermediate_size": 16, "num_local_experts": 4}

MODELS = {
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "llama3": ("Llama", rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64)),
    "linear": ("Llama", {"num_hidden_layers": 2, **rope(rope_type="linear", factor=4.0)}),
    "yarn": ("Qwen3", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=256)),
    "longrope": ("Phi3", {**PHI3, "original_max_position_embeddings": 256, **rope(**LONGROPE)}),
    # Layer 1 has an MLP; the others' weights are of a softmax over the chosen two.
    "qwen3moe": ("Qwen3Moe", {**EXPERTS, "mlp_only_layers": [1]}),
    # One expert a token, times its share of the softmax over all; layers 1 and 3 have experts.
    "qwen3moe-one": ("Qwen3Moe", {**EXPERTS, "num_experts_per_tok": 1, "norm_topk_prob": False, "num_hidden_layers": 4,
                                  "decoder_sparse_step": 2}),
    # An expert that nearly all tokens choose and one that none does, and a shared one.
    "qwen2moe-skewed": ("Qwen2Moe", {**EXPERTS, "norm_topk_prob": False, "num_hidden_layers": 2, "shared_expert_intermediate_size": 24}),
    "mixtral": ("Mixtral", {**MIXTRAL, "num_experts_per_tok": 2}),
    "mixtral-all": ("Mixtral", {**MIXTRAL, "num_experts_per_tok": 4}),
}
SKEWED = {"qwen2moe-skewed"}
# Where rounding alone decides whether an expert is chosen, the reference says nothing: between the last chosen logit and the next lie at
# least so many. float32's errors are some 1e-5.
MIN_MARGIN = 2e-4


def randomise(model, seed):
    """Weights that make every part matter: scores of a few nats, norms and biases that are not 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight"):
                weight.copy_(1 + 0.2 * noise)
            elif weight.dim() == 1:
                weight.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                weight.copy_(noise * (0.05 if model.config.tie_word_embeddings else 1))  # else a row would predict itself
            else:
                gain = 2 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "gate.weight", "router")) else 1
                weight.copy_(noise * gain / weight.shape[-1] ** 0.5)
            weight.copy_(weight.to(torch.bfloat16))


def skew(model):
    """All tokens have a component in common, for which the first expert's router stands and against which the last one's does."""
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 8
        for layer in model.model.layers:
            layer.post_attention_layernorm.weight[0] = 1
            layer.mlp.gate.weight[:, 0] = 0
            layer.mlp.gate.weight[0, 0], layer.mlp.gate.weight[-1, 0] = 2, -4


def watch_routers(model):
    """[layer] of (logits [rows, experts], chosen [rows, k]) of the last forward pass."""
    routers = [module for name, module in model.named_modules() if name.endswith(".gate")]
    seen = [None] * len(routers)

    def watch(i):
        routers[i].register_forward_hook(lambda module, inputs, output: seen.__setitem__(i, (output[0].detach(), output[2])))
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


def golden(name, model, ids, rng):
    config = model.config
    routers = watch_routers(model)
    with torch.no_grad():
        out = model(torch.tensor([ids]), use_cache=True, past_key_values=transformers.DynamicCache())
        logits = out.logits[0]
        check_routers(name, routers)
        layers = out.past_key_values.layers
        generated = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
                                   max_new_tokens=MAX_TOKENS, do_sample=False, eos_token_id=EOS)[0, len(ids):].tolist()
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
    seed = sum(name.encode())
    shape = {**SHAPE, **changes}
    config = getattr(transformers, family + "Config")(**{field: value for field, value in shape.items() if value != "none"})
    model = getattr(transformers, family + "ForCausalLM")(config).float().eval()
    randomise(model, seed)
    if name in SKEWED:
        skew(model)
    rng = random.Random(seed)
    prompts = [[rng.randrange(80) for _ in range(length)] for length in LENGTHS]
    entries = [golden(name, model, ids, rng) for ids in prompts]
    folder = os.path.join(HERE, name)
    model.generation_config = transformers.GenerationConfig(eos_token_id=EOS)
    model.to(torch.bfloat16).save_pretrained(folder)
    os.chmod(os.path.join(folder, "model.safetensors"), 0o644)
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as file:
        json.dump(entries, file)
        file.write("\n")
    print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters, generated {[e['generated_token_ids'] for e in entries]}")


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        make(name)
