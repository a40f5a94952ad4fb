#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefills a prompt and pulls its KV cache into NumPy arrays while later layers are computed.

    pip install numpy ./sdk/python && examples/pull.py HOST:PORT MODEL PROMPT     PROMPT: a JSON list of token ids"""
import json
import sys

import numpy as np
from millrace_kv import Client, Coordinator

BLOCK = 64
address, model, path = sys.argv[1:]
with open(path) as file:
    tokens = json.load(file)

coordinator, client = Coordinator(address), Client()
prefill = coordinator.prefill(model, tokens)
# Comes before the first layer, with the cache's shape.
manifest = prefill.manifest(timeout_s=60)

# The engine's memory, [blocks, kv heads, tokens, head dim] of K and of V for each layer. NumPy has no bfloat16: a group on a CPU
# that is to serve it needs --dtype float32.
num_blocks = -(-manifest.num_tokens // BLOCK)
shape = num_blocks, manifest.num_kv_heads, BLOCK, manifest.head_dim
layers = [(np.zeros(shape, manifest.dtype), np.zeros(shape, manifest.dtype)) for _ in range(manifest.num_layers)]

with client.pull(manifest, layers, range(num_blocks), feed=prefill.feed, timeout_s=60) as pull:
    for layer in range(manifest.num_layers):
        pull.wait_layer(layer)
        print(f"layer {layer}: the largest key is {np.abs(layers[layer][0]).max():.2f}")

prefill.ended.wait(60)
print("the first token is", prefill.result().first_token_id)
coordinator.end(prefill.request_id)
client.close()
