#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reference values of a small Llama checkpoint, from an independent implementation in NumPy and float32.

Shares no code with the service and none with the training script.  Writes golden.json, a list of

  prompt_token_ids, answer_token_ids, needle_position   the prompt, the record's digits, where the record starts
  last_logits_top10                                     [[id, logit], ...] after the prompt
  kv_samples    [{layer, kv_head, token, dim, k, v}]    four values from `dim` on; K after RoPE

  make_golden.py MODEL_DIR                     write MODEL_DIR/golden.json
  make_golden.py MODEL_DIR --check FILE        compare with another golden.json of the same model
"""
import argparse
import json
import os
import struct

import numpy as np

import make_prompts as mp


def load_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    size, = struct.unpack_from("<Q", data)
    out = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] in ("BF16", "F32"), entry
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "F32":
            values = np.frombuffer(data, "<f4", (end - begin) // 4, 8 + size + begin)
        else:
            high = np.frombuffer(data, "<u2", (end - begin) // 2, 8 + size + begin)
            values = (high.astype(np.uint32) << 16).view(np.float32)  # bf16 is the upper half of a float32
        out[name] = values.reshape(entry["shape"])
    return out


class Llama:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        self.weights = load_safetensors(os.path.join(folder, "model.safetensors"))

    def norm(self, x, name):
        scale = 1 / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + np.float32(self.config["rms_norm_eps"]))
        return x * scale * self.weights[name]

    def rope(self, x):
        """x: [tokens, heads, dim].  Dimension i turns with i + dim/2, at theta^(-2i/dim) radians a position."""
        half = x.shape[-1] // 2
        angle = np.outer(np.arange(x.shape[0]), self.config["rope_theta"] ** (-np.arange(half) / half))
        cos, sin = np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]
        low, high = x[..., :half], x[..., half:]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    def forward(self, ids, rows):
        """Logits after the given rows, and every layer's K (after RoPE) and V as [tokens, kv heads, dim]."""
        c, w = self.config, self.weights
        n, dim, group = len(ids), c["head_dim"], c["num_attention_heads"] // c["num_key_value_heads"]
        x = w["model.embed_tokens.weight"][ids]
        cache = []
        for layer in range(c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            h = self.norm(x, p + "input_layernorm.weight")
            q, k, v = ((h @ w[p + f"self_attn.{s}_proj.weight"].T).reshape(n, -1, dim) for s in "qkv")
            q, k = self.rope(q), self.rope(k)
            cache.append((k, v))
            out = np.empty_like(q)
            for begin in range(0, n, 512):  # rows at a time, because the score matrix takes the most memory
                end = min(n, begin + 512)
                masked = np.arange(end)[None, :] > np.arange(begin, end)[:, None]
                for head in range(q.shape[1]):
                    s = q[begin:end, head] @ k[:end, head // group].T / np.float32(np.sqrt(dim))
                    s[masked] = -np.inf
                    s = np.exp(s - s.max(-1, keepdims=True))
                    out[begin:end, head] = (s / s.sum(-1, keepdims=True)) @ v[:end, head // group]
            x = x + out.reshape(n, -1) @ w[p + "self_attn.o_proj.weight"].T
            h = self.norm(x, p + "post_attention_layernorm.weight")
            gate = h @ w[p + "mlp.gate_proj.weight"].T
            gate = gate / (1 + np.exp(-gate))
            x = x + (gate * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
        logits = self.norm(x[rows], "model.norm.weight") @ w["model.embed_tokens.weight"].T
        return logits, cache


def golden(model, prompt, samples, rng):
    ids, answer = prompt["prompt_token_ids"], prompt["answer_token_ids"]
    last = len(ids) - 1
    # Probes and the answer are judged in the same pass; later tokens do not change earlier rows.
    logits, cache = model.forward(ids + answer[:3], prompt["probe_positions"] + list(range(last, last + 4)))
    picked = logits.argmax(-1).tolist()
    right = picked == prompt["expected_probe_token_ids"] + answer
    print(f"{len(ids)} tokens: probes and answer {'right' if right else f'WRONG: {picked}'}")
    row = logits[len(prompt["probe_positions"])]
    config = model.config
    kv = []
    for _ in range(samples):
        s = {"layer": rng.below(config["num_hidden_layers"]), "kv_head": rng.below(config["num_key_value_heads"]),
             "token": rng.below(len(ids)), "dim": rng.below(config["head_dim"] - 3)}
        for name, tensor in zip("kv", cache[s["layer"]]):
            s[name] = [round(float(a), 5) for a in tensor[s["token"], s["kv_head"], s["dim"]:s["dim"] + 4]]
        kv.append(s)
    return {"prompt_token_ids": ids, "answer_token_ids": answer, "needle_position": ids.index(ids[-1]) - 1,
            "last_logits_top10": [[int(i), round(float(row[i]), 4)] for i in np.argsort(-row, kind="stable")[:10]],
            "kv_samples": kv}


def check(model, path):
    with open(path, encoding="utf-8") as f:
        entries = json.load(f)
    for entry in entries:
        ids = entry["prompt_token_ids"]
        logits, cache = model.forward(ids, [len(ids) - 1])
        error = max(abs(float(logits[0, i]) - value) for i, value in entry["last_logits_top10"])
        kv = 0.0
        for s in entry["kv_samples"]:
            for name, tensor in zip("kv", cache[s["layer"]]):
                got = tensor[s["token"], s["kv_head"], s["dim"]:s["dim"] + len(s[name])]
                kv = max(kv, float(np.abs(got - s[name]).max()))
        print(f"{len(ids)} tokens: largest error of a logit {error:.2e}, of K or V {kv:.2e}")


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("model")
    ap.add_argument("--check", help="a golden.json to compare with, instead of writing one")
    ap.add_argument("--samples", type=int, default=40)
    args = ap.parse_args()
    model = Llama(args.model)
    if args.check:
        check(model, args.check)
        return
    rng = mp.Rng(7)
    fmt = mp.fixture_format(os.path.join(args.model, "vocab.json"))
    # needle_position is found by the key's first appearance, so the key must not occur in earlier filler.
    entries = []
    for tokens, records, queries, mode in ((200, 4, 3, "all"), (1000, 8, 8, "one"), (3001, 8, 8, "all")):
        for seed in range(tokens, tokens + 1000):
            prompt = mp.make_prompt(fmt, tokens, records, queries, mode, seed)
            ids = prompt["prompt_token_ids"]
            if ids[ids.index(ids[-1]) - 1] == mp.RECORD:
                break
        entries.append(golden(model, prompt, args.samples, rng))
    with open(os.path.join(args.model, "golden.json"), "w", encoding="utf-8") as f:
        json.dump(entries, f)
        f.write("\n")


if __name__ == "__main__":
    main()
