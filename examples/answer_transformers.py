#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transformers generates from a cache that Millrace has prefilled.

    pip install torch transformers ./sdk/python
    examples/answer_transformers.py HOST:PORT MODEL DIR PROMPT     DIR: the model; PROMPT: a JSON list of token ids"""
import json
import sys

import torch
from millrace_kv.transformers import prefill
from transformers import AutoModelForCausalLM

address, name, directory, path = sys.argv[1:]
with open(path) as file:
    tokens = json.load(file)
model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")

# All but the last token come from Millrace; the model computes that one, and those that it generates.
cache, result = prefill(address, name, tokens, float8_dtype=model.dtype)
for layer in cache.layers:
    layer.keys, layer.values = layer.keys.to(model.dtype), layer.values.to(model.dtype)
answer = model.generate(torch.tensor([tokens]), past_key_values=cache, max_new_tokens=4, do_sample=False)

print("Millrace's first token:", result.first_token_id)
print("answer:", answer[0, len(tokens):].tolist())
