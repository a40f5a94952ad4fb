#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a Hugging Face directory (config.json, model.safetensors, tokenizer.json) from a GGUF file.

    convert_gguf.py MODEL.gguf DIR [--dtype bfloat16|float32] [--rope-theta X] [--max-positions N]

Supports Llama models with the byte-level tokenizer of SmolLM, and Gemma 3 text models. Quantised weights are written as the numbers that they
stand for. Needs numpy.
"""

import argparse
import json
import os
import struct

import numpy as np

import gemma_gguf
import llama_gguf
from gguf_file import GgufFile

ARCHITECTURES = {"gemma3": gemma_gguf, "llama": llama_gguf}


def bfloat16_bits(values):
    """The bits of values rounded to the nearest bfloat16, ties to even; numpy has no such type."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_safetensors(path, tensors, dtype):
    encode = {"bfloat16": bfloat16_bits, "float32": lambda values: values.astype("<f4")}[dtype]
    header, size = {}, 0
    for name, values in tensors.items():
        end = size + values.size * (2 if dtype == "bfloat16" else 4)
        header[name] = {"dtype": "BF16" if dtype == "bfloat16" else "F32", "shape": list(values.shape), "data_offsets": [size, end]}
        size = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(encode(values).tobytes())


def convert(gguf_path, directory, dtype, rope_theta=None, max_positions=None):
    gguf = GgufFile(gguf_path)
    name = gguf.fields["general.architecture"]
    if name not in ARCHITECTURES:
        raise ValueError(f"{gguf_path}: architecture {name}; known are {', '.join(ARCHITECTURES)}")
    architecture = ARCHITECTURES[name]
    os.makedirs(directory, exist_ok=True)

    def write_json(name, value):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)

    weights = dict(architecture.read_weights(gguf))
    write_safetensors(os.path.join(directory, "model.safetensors"), weights, dtype)
    write_json("tokenizer.json", architecture.tokenizer(gguf.fields))
    write_json("generation_config.json", {name: gguf.fields[f"tokenizer.ggml.{name}"] for name in ("bos_token_id", "eos_token_id")})
    write_json("config.json", architecture.config(gguf.fields, dtype, "lm_head.weight" not in weights, rope_theta, max_positions))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("directory")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--rope-theta", type=float)
    parser.add_argument("--max-positions", type=int)
    args = parser.parse_args()
    convert(args.gguf, args.directory, args.dtype, args.rope_theta, args.max_positions)


if __name__ == "__main__":
    main()
