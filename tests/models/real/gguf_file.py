# SPDX-License-Identifier: Apache-2.0
"""Reads a GGUF file: its fields, and its tensors as float32.

The format is described in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the blocks of quantised types are those of ggml-common.h in
the same repository. Reads versions 2 and 3, little-endian, with types F32, F16, BF16, Q8_0, Q5_0, Q4_0,
Q4_1, Q4_K and Q6_K.
"""

import math
import struct

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

BLOCK = 32  # values a block of the quantised types below
SUPER_BLOCK = 256  # and of those with a K


def _half(blocks, at):
    return blocks[:, at:at + 2].copy().view("<f2").astype(np.float32)


def _nibbles(packed):
    """Values 0 to 15 and 16 to 31 of a block are the low and the high halves of its 16 bytes."""
    return np.concatenate((packed & 15, packed >> 4), axis=1).astype(np.float32)


def _q5_0(blocks):
    """The fifth bit of value i is bit i of a 32-bit number before the nibbles."""
    fifth = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
    return (_nibbles(blocks[:, 6:]) + 16 * fifth - 16) * _half(blocks, 0)


def _q4_k(blocks):
    """Eight groups of 32 values q * scale - minimum; scales and minima have 6 bits and a factor each."""
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, third & 15 | first >> 6 << 4), axis=1) * _half(blocks, 0)
    minima = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), axis=1) * _half(blocks, 2)
    # 32 bytes have two groups: the low halves and the high ones.
    bytes_ = blocks[:, 16:].reshape(-1, 4, 1, 32)
    values = np.concatenate((bytes_ & 15, bytes_ >> 4), axis=2).reshape(-1, 8, 32)
    return values * scales[:, :, None] - minima[:, :, None]


def _q6_k(blocks):
    """Sixteen groups of 16 values (q - 32) * scale. Each half of the block has four rows of 32 values: low halves of 64 bytes, then the high ones;
    32 bytes have the upper two bits, row by row from the lowest."""
    low, high = blocks[:, :128].reshape(-1, 2, 1, 64), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.concatenate((low & 15, low >> 4), axis=2).reshape(-1, 2, 4, 32)
    high = high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    values = (low | high << 4).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8) * _half(blocks, 208)
    return values.reshape(-1, 16, 16) * scales[:, :, None]


# Type: name, values per block, bytes per block, and the function that makes float32 [blocks, values] from uint8 [blocks, bytes].
TENSOR_TYPES = {
    0: ("F32", 1, 4, lambda b: b.view("<f4")),
    1: ("F16", 1, 2, lambda b: b.view("<f2").astype(np.float32)),
    30: ("BF16", 1, 2, lambda b: (b.view("<u2").astype(np.uint32) << 16).view(np.float32)),
    2: ("Q4_0", BLOCK, 18, lambda b: (_nibbles(b[:, 2:]) - 8) * _half(b, 0)),
    3: ("Q4_1", BLOCK, 20, lambda b: _nibbles(b[:, 4:]) * _half(b, 0) + _half(b, 2)),
    6: ("Q5_0", BLOCK, 22, _q5_0),
    12: ("Q4_K", SUPER_BLOCK, 144, _q4_k),
    14: ("Q6_K", SUPER_BLOCK, 210, _q6_k),
    8: ("Q8_0", BLOCK, 34, lambda b: b[:, 2:].view(np.int8) * _half(b, 0)),
}


class GgufFile:
    """fields: name -> number, string or list. tensor_names: in the file's order."""

    def __init__(self, path):
        self._data = np.memmap(path, np.uint8, mode="r")
        self._at = 0
        magic, version, num_tensors, num_fields = self._take("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path}: no GGUF file of version 2 or 3")
        self.fields = {}
        for _ in range(num_fields):
            name = self._string()
            self.fields[name] = self._value(self._take("I")[0])
        self._tensors = {}  # name -> shape, type, offset
        for _ in range(num_tensors):
            name = self._string()
            shape = self._take(f"{self._take('I')[0]}Q")[::-1]  # GGUF counts from the innermost dimension
            self._tensors[name] = (shape, *self._take("IQ"))
        alignment = self.fields.get("general.alignment", 32)
        self._begin = -(-self._at // alignment) * alignment

    @property
    def tensor_names(self):
        return list(self._tensors)

    def tensor(self, name):
        shape, type_id, offset = self._tensors[name]
        if type_id not in TENSOR_TYPES:
            known = ", ".join(entry[0] for entry in TENSOR_TYPES.values())
            raise ValueError(f"tensor {name} is of ggml type {type_id}; known are {known}")
        _, values, size, decode = TENSOR_TYPES[type_id]
        num_blocks = math.prod(shape) // values
        begin = self._begin + offset
        blocks = np.array(self._data[begin:begin + num_blocks * size]).reshape(num_blocks, size)
        return decode(blocks).reshape(shape)

    def _take(self, layout):
        values = struct.unpack_from("<" + layout, self._data, self._at)
        self._at += struct.calcsize("<" + layout)
        return values

    def _string(self):
        size, = self._take("Q")
        return self._take(f"{size}s")[0].decode()

    def _value(self, type_id):
        if type_id == STRING:
            return self._string()
        if type_id != ARRAY:
            return self._take(SCALARS[type_id])[0]
        element, count = self._take("IQ")
        if element in SCALARS:
            return list(self._take(f"{count}{SCALARS[element]}"))
        return [self._value(element) for _ in range(count)]
