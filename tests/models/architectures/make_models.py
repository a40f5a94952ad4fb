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

MODELS = {
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "llama3": ("Llama", rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64)),
    "linear": ("Llama", {"num_hidden_layers": 2, **rope(rope_type="linear", factor=4.0)}),
    "yarn": ("Qwen3", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=256)),
    "longrope": ("Phi3", {**PHI3, "original_max_position_embeddings": 256, **rope(**LONGROPE)}),
}


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


def top_logits(row):
    ids = torch.argsort(row, descending=True, stable=True)[:10]
    return [[int(i), round(float(row[i]), 5)] for i in ids]


def golden(model, ids, rng):
    config = model.config
    with torch.no_grad():
        out = model(torch.tensor([ids]), use_cache=True, past_key_values=transformers.DynamicCache())
        logits = out.logits[0]
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
    rng = random.Random(seed)
    prompts = [[rng.randrange(80) for _ in range(length)] for length in LENGTHS]
    entries = [golden(model, ids, rng) for ids in prompts]
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
