# SPDX-License-Identifier: Apache-2.0
"""Writes a neuron predictor as Millrace reads it (decode/mlp/neuron_predictor.h): safetensors, with the same bytes for the same numbers."""

import json

import torch
from plan_file import write_whole

FORMAT = "millrace neuron predictor 1"
_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def predictor_bytes(layers, embedding_rows, facts):
    """layers: {number: (reduce, expand, bias)}; facts: texts by name, for people who look into the file."""
    tensors = {"embedding_rows": embedding_rows}
    for number, (reduce, expand, bias) in sorted(layers.items()):
        tensors.update({f"layers.{number}.reduce": reduce, f"layers.{number}.expand": expand, f"layers.{number}.bias": bias})
    header, data = {"__metadata__": {"format": FORMAT, **facts}}, []
    end = 0
    for name, tensor in tensors.items():
        data.append(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + len(data[-1])]}
        end += len(data[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns what follows
    return len(text).to_bytes(8, "little") + text + b"".join(data)


def write_predictor(path, layers, embedding_rows, facts):
    write_whole(path, predictor_bytes(layers, embedding_rows, facts))
