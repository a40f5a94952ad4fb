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
# Name, innermost dimension first, type, bytes, values. 0.75 and -1.5 are exact in every type.
TENSORS = [("f32", (2, 2), 0, struct.pack("<4f", 0.75, -1.5, 2, 3), [[0.75, -1.5], [2, 3]]),
           ("f16", (2,), 1, half(0.75) + half(-1.5), [0.75, -1.5]),
           ("bf16", (2,), 30, struct.pack("<HH", 0x3F40, 0xBFC0), [0.75, -1.5]),
           ("q4_0", (32,), 2, half(0.5) + NIBBLES, [(q - 8) / 2 for q in LOW + HIGH]),
           ("q4_1", (32,), 3, half(0.5) + half(-1.5) + NIBBLES, [q / 2 - 1.5 for q in LOW + HIGH]),
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
        with self.assertRaisesRegex(ValueError, "ggml type 12; known are F32"):
            opened(gguf_bytes([("q4_k", (256,), 12, bytes(144), None)])).tensor("q4_k")

    def test_another_file_is_refused(self):
        with self.assertRaisesRegex(ValueError, "no GGUF file"):
            opened(b"PK" + bytes(100))


if __name__ == "__main__":
    real_model.prepare_or_exit()
    unittest.main()
