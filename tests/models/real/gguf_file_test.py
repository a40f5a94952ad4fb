#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests gguf_file.py on a file that is written here byte by byte. Exit status 77 if numpy cannot be fetched (real_model.py)."""

import os
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import real_model  # noqa: E402


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def half(value):
    return struct.pack("<e", value)


FIELDS = [text("general.architecture") + struct.pack("<I", 8) + text("llama"),
          text("layers") + struct.pack("<II", 4, 30),
          text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc"),
          text("types") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3)]
NIBBLES = bytes(i | (15 - i) << 4 for i in range(16))  # 0 to 15, then 15 to 0
LOW, HIGH = list(range(16)), list(range(15, -1, -1))
# Of each group of a Q4_K block, in 6 bits.
SCALES, MINIMA = [1, 2, 33, 63, 17, 40, 3, 50], [0, 5, 62, 20, 48, 1, 35, 16]
SIX_BITS = [7 * i % 64 for i in range(256)]


def packed_scales():
    """The first four of each have bytes of their own, which lend their upper two bits to the other four."""
    low = bytes(a | b >> 4 << 6 for values in (SCALES, MINIMA) for a, b in zip(values[:4], values[4:], strict=True))
    return low + bytes(s & 15 | (m & 15) << 4 for s, m in zip(SCALES[4:], MINIMA[4:], strict=True))


def q6_k_bytes(scales):
    low, high = b"", b""
    for a, b, c, d in ([SIX_BITS[half + row:half + row + 32] for row in range(0, 128, 32)] for half in (0, 128)):
        low += bytes(x & 15 | (y & 15) << 4 for x, y in zip(a + b, c + d, strict=True))
        high += bytes(w >> 4 | x >> 4 << 2 | y >> 4 << 4 | z >> 4 << 6 for w, x, y, z in zip(a, b, c, d, strict=True))
    return low + high + struct.pack("16b", *scales)


# Name, innermost dimension first, type, bytes, values. 0.75 and -1.5 are exact in every type.
TENSORS = [("f32", (2, 2), 0, struct.pack("<4f", 0.75, -1.5, 2, 3), [[0.75, -1.5], [2, 3]]),
           ("f16", (2,), 1, half(0.75) + half(-1.5), [0.75, -1.5]),
           ("bf16", (2,), 30, struct.pack("<HH", 0x3F40, 0xBFC0), [0.75, -1.5]),
           ("q4_0", (32,), 2, half(0.5) + NIBBLES, [(q - 8) / 2 for q in LOW + HIGH]),
           ("q4_1", (32,), 3, half(0.5) + half(-1.5) + NIBBLES, [q / 2 - 1.5 for q in LOW + HIGH]),
           ("q5_0", (32,), 6, half(0.5) + struct.pack("<I", 0xFFFF) + NIBBLES, [q / 2 for q in LOW] + [(q - 16) / 2 for q in HIGH]),
           ("q4_k", (256,), 12, half(0.5) + half(0.25) + packed_scales() + 8 * NIBBLES,
            [q * s / 2 - m / 4 for i, (s, m) in enumerate(zip(SCALES, MINIMA)) for q in 2 * (HIGH if i % 2 else LOW)]),
           ("q6_k", (256,), 14, q6_k_bytes(range(-8, 8)) + half(0.5), [(q - 32) * (i // 16 - 8) / 2 for i, q in enumerate(SIX_BITS)]),
           ("q8_0", (32, 2), 8, b"".join(half(s) + struct.pack("32b", *range(-16, 16)) for s in (0.25, 2)),
            [[q * s for q in range(-16, 16)] for s in (0.25, 2)])]


def gguf_bytes(tensors):
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(FIELDS)) + b"".join(FIELDS)
    data = b""
    for name, shape, kind, content, _ in tensors:
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        data += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + data


def opened(content):
    from gguf_file import GgufFile
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return GgufFile(file.name)


class Gguf(unittest.TestCase):
    def test_fields_are_read_with_their_types(self):
        self.assertEqual(opened(gguf_bytes([])).fields,
                         {"general.architecture": "llama", "layers": 30, "tokens": ["a", "bc"], "types": [1, -2, 3]})

    def test_every_type_gives_the_numbers_that_it_stands_for(self):
        gguf = opened(gguf_bytes(TENSORS))
        for name, _, _, _, values in TENSORS:
            tensor = gguf.tensor(name)
            self.assertEqual((str(tensor.dtype), tensor.tolist()), ("float32", values), name)

    def test_a_type_that_is_not_known_is_named(self):
        with self.assertRaisesRegex(ValueError, "ggml type 10; known are F32"):
            opened(gguf_bytes([("q2_k", (256,), 10, bytes(84), None)])).tensor("q2_k")

    def test_another_file_is_refused(self):
        with self.assertRaisesRegex(ValueError, "no GGUF file"):
            opened(b"PK" + bytes(100))


if __name__ == "__main__":
    real_model.prepare_or_exit()
    unittest.main()
