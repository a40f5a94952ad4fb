#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes golden_batches.h: batches as msgspec 0.22.0 encodes vLLM's structures of these fields. python3 golden_batches.py >golden_batches.h"""
import msgspec


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class Event(msgspec.Struct, tag=True, omit_defaults=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    pass


def stored(hashes, parent, tokens, salt=None):
    return BlockStored(hashes, parent, tokens, 64, None, "GPU", None, [[salt], *[None] * (len(hashes) - 1)] if salt else None, 0,
                       "full_attention")


WIDTHS = [0, 127, 128, 255, 256, 65535, 65536, 2**31 - 1] * 8
LONG = [i % 128 for i in range(17 * 64)]

BATCHES = {
    "cleared": [AllBlocksCleared()],
    "stored_first_block": [stored([2**64 - 1], None, WIDTHS)],
    "stored_behind": [stored([2**32 - 1, 2**32], 5, LONG[:128])],
    "stored_many": [stored([i * 0x0123456789abcdef % 2**64 for i in range(17)], 200, LONG)],
    "stored_with_salt": [stored([1, 2, 3], None, LONG[:192], "a salt of 37 bytes, the last being \u00e9")],
    "removed": [BlockRemoved([3, 2**64 - 2, 70000], "GPU", 0)],
    "removed_then_stored": [BlockRemoved(list(range(16)), "GPU", 0), stored([9], 8, LONG[:64])],
}
HEADS = {
    "array": [[0] * n for n in (0, 15, 16, 65535, 65536)],
    "map": [{str(i): 0 for i in range(n)} for n in (0, 15, 16, 65535, 65536)],
    "text": ["x" * n for n in (0, 31, 32, 255, 256, 65535, 65536)],
}
# The size in bytes of a value's header, without its items.
HEAD_BYTES = {"array": (1, 1, 3, 3, 5), "map": (1, 1, 3, 3, 5), "text": (1, 1, 2, 2, 3, 3, 5)}


def literal(name, data):
    text = data.hex()
    lines = [text[i:i + 90] for i in range(0, len(text), 90)]
    print(f"inline constexpr std::string_view k{name.title().replace('_', '')} =")
    print("\n".join(f'    "{line}"' for line in lines) + ";")


print("// Made by golden_batches.py, by msgspec " + msgspec.__version__ + ": hexadecimal bytes.")
print("#pragma once\n\n#include <string_view>\n\nnamespace millrace::worker::golden {\n")
for name, events in BATCHES.items():
    literal(name, msgspec.msgpack.encode(Batch(1795479300.25, events, 0)))
for name, values in HEADS.items():
    encoded = [msgspec.msgpack.encode(value)[:count] for value, count in zip(values, HEAD_BYTES[name], strict=True)]
    literal(f"{name}_heads", b"".join(encoded))
print("\n}  // namespace millrace::worker::golden")
