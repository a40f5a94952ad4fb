# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a Gemma 3 text model in NumPy and float32. Shares no code with the service."""

import json
import os

import numpy as np

from make_golden import load_safetensors

ROWS_AT_A_TIME = 512  # because the score matrix takes the most memory


class Gemma:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        self.weights = load_safetensors(os.path.join(folder, "model.safetensors"))

    def norm(self, x, name):
        return x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + np.float32(self.config["rms_norm_eps"])) * (1 + self.weights[name + ".weight"])

    def product(self, x, name):
        return x @ self.weights[name + ".weight"].T

    @staticmethod
    def rope(x, theta):
        """x: [tokens, heads, dim]. Element i turns with i + dim/2, at theta^(-2i/dim) radians a position."""
        half = x.shape[-1] // 2
        turn = np.exp(1j * np.outer(np.arange(x.shape[0]), theta ** (-np.arange(half) / half)))[:, None].astype(np.complex64)
        turned = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([turned.real, turned.imag], -1)

    def attention(self, x, layer, prefix):
        c, n = self.config, len(x)
        has_window = c["layer_types"][layer] == "sliding_attention"
        window, theta = (c["sliding_window"], c["rope_local_base_freq"]) if has_window else (n, c["rope_theta"])
        q, k, v = (self.product(x, f"{prefix}{s}_proj").reshape(n, -1, c["head_dim"]) for s in "qkv")
        q, k = (self.rope(self.norm(part, f"{prefix}{name}_norm"), theta) for part, name in ((q, "q"), (k, "k")))
        out, group = np.empty_like(q), q.shape[1] // k.shape[1]
        for begin in range(0, n, ROWS_AT_A_TIME):
            rows, keys = np.arange(begin, min(n, begin + ROWS_AT_A_TIME)), np.arange(n)
            distance = rows[:, None] - keys
            for head in range(q.shape[1]):
                scores = q[rows, head] @ k[:, head // group].T * np.float32(c["query_pre_attn_scalar"] ** -0.5)
                scores[(distance < 0) | (distance >= window)] = -np.inf
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                out[rows, head] = scores @ v[:, head // group] / scores.sum(-1, keepdims=True)
        return self.product(out.reshape(n, -1), prefix + "o_proj")

    def mlp(self, x, prefix):
        gate, up = (self.product(x, f"{prefix}{name}_proj") for name in ("gate", "up"))
        gelu = 0.5 * gate * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (gate + np.float32(0.044715) * gate ** 3)))
        return self.product(gelu * up, prefix + "down_proj")

    def logits(self, ids, rows):
        x = self.weights["model.embed_tokens.weight"][ids] * np.float32(self.config["hidden_size"] ** 0.5)
        for layer in range(self.config["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            x = x + self.norm(self.attention(self.norm(x, p + "input_layernorm"), layer, p + "self_attn."), p + "post_attention_layernorm")
            x = x + self.norm(self.mlp(self.norm(x, p + "pre_feedforward_layernorm"), p + "mlp."), p + "post_feedforward_layernorm")
        return self.norm(x[rows], "model.norm") @ self.weights["model.embed_tokens.weight"].T
