# SPDX-License-Identifier: Apache-2.0
"""Rules for the span of a head, alpha + beta * length, and what each costs at a length. Standard library only.

A rule means the same as elastic:ALPHA,BETA in a head plan (kernels/index/closed_form.h): the first 64 keys; the last alpha + beta * length keys, at
least 64; and all keys for the last rows.
"""

import math
from typing import NamedTuple

PAGE_TOKENS = 64
# MoA's grid (alpha by 1,024 or 2,048, beta by 1/8; lengths 2,048 to 8,192), but finer where spans are short: spans below 512 differ most.
ALPHAS = (-1024, -512, -256, 0, 64, 128, 256, 512, 1024, 2048, 4096)
BETAS = (0.0, 0.0625, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)


class Rule(NamedTuple):
    alpha: int
    beta: float

    def window(self, num_tokens):
        return min(max(self.alpha + math.floor(self.beta * num_tokens), PAGE_TOKENS), num_tokens)

    def text(self):
        """Returns the rule as written in a head plan."""
        return "dense" if self.alpha >= 0 and self.beta == 1 else f"elastic:{self.alpha},{self.beta:g}"


def first_dense_row(num_tokens):
    """Returns the first of the last rows, which attend to everything under every plan (kernels/index/tiling.h)."""
    return max(num_tokens - PAGE_TOKENS, 0) // PAGE_TOKENS * PAGE_TOKENS


def density(window, num_tokens):
    """Returns the share of the causal pairs that are computed for a head with that window, as Millrace's responses report it: all
    rows of a tile attend to what its first row reaches."""
    pairs = 0
    for tile in range(0, num_tokens, PAGE_TOKENS):
        dense = tile >= first_dense_row(num_tokens)
        first_key = 0 if dense else max(tile - window + 1, 0)
        pairs += sum(row - first_key + 1 + min(PAGE_TOKENS, first_key) for row in range(tile, min(tile + PAGE_TOKENS, num_tokens)))
    return pairs / (num_tokens * (num_tokens + 1) / 2)


def make_rules(lengths, alphas=ALPHAS, betas=BETAS):
    """Returns the rules that differ at one or more of the lengths. Of rules equal at all lengths, keeps the one that grows least beyond them. Leaves
    out rules without a span of their own at the shortest length, except the least span of all."""
    rules = {}
    for beta in sorted(betas):
        for alpha in sorted(alphas):
            if alpha + math.floor(beta * min(lengths)) < PAGE_TOKENS and (alpha, beta) != (0, 0):
                continue
            rule = Rule(alpha, beta)
            rules.setdefault(tuple(rule.window(length) for length in lengths), rule)
    # A rule that covers everything at all these lengths is made dense at every other length.
    everything = tuple(lengths)
    if everything in rules:
        rules[everything] = Rule(0, 1.0)
    return sorted(rules.values())
