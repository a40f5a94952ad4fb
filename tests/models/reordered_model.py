# SPDX-License-Identifier: Apache-2.0
"""Makes checkpoints of the same model with its sums in other orders: of the channels of every MLP and the query heads of every kv head.

Runs of such checkpoints differ only by rounding and by what rounding decides. Standard library only.
"""

import json
import os
import shutil
import struct


def _reversed(blocks):
    return blocks[::-1]


def _rotated(blocks):
    """The last third comes first."""
    return blocks[-(len(blocks) // 3):] + blocks[:-(len(blocks) // 3)] if len(blocks) > 2 else blocks[::-1]


ORDERS = {"reversed": _reversed, "rotated": _rotated}


def _rows(data, count):
    size = len(data) // count
    return [data[at:at + size] for at in range(0, len(data), size)]


def _reordered(name, shape, data, config, order):
    """A tensor's bytes, reordered if it has the channels or heads whose order changes."""
    def blocks(data, size):
        return b"".join(order(_rows(data, len(data) // size)))

    group_heads = config["num_attention_heads"] // config["num_key_value_heads"]
    if name.endswith((".gate_proj.weight", ".up_proj.weight")):
        return blocks(data, len(data) // shape[0])
    if name.endswith(".down_proj.weight"):
        return b"".join(blocks(row, len(data) // (shape[0] * shape[1])) for row in _rows(data, shape[0]))
    if name.endswith(".q_proj.weight"):
        groups = _rows(data, config["num_key_value_heads"])
        return b"".join(blocks(group, len(group) // group_heads) for group in groups)
    if name.endswith(".o_proj.weight"):
        groups = [group for row in _rows(data, shape[0]) for group in _rows(row, config["num_key_value_heads"])]
        return b"".join(blocks(group, len(group) // group_heads) for group in groups)
    return data


def write_reordered(model, directory, order):
    """Writes `model`, which must be one file without biases, in one of ORDERS to `directory`."""
    os.makedirs(directory)
    for name in os.listdir(model):
        if name.endswith(".json"):
            shutil.copy(os.path.join(model, name), directory)
    with open(os.path.join(model, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(model, "model.safetensors"), "rb") as file:
        data = file.read()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    out = bytearray(data)
    for name, tensor in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        first, end = (begin + offset for offset in tensor["data_offsets"])
        out[first:end] = _reordered(name, tensor["shape"], data[first:end], config, ORDERS[order])
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(out)
