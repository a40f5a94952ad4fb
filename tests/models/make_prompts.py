#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Needle prompts with questions in the middle, for the fixture model and for needle-7m.

A prompt is filler with R records in its first third, Q answered queries spread over the rest and one
unanswered query at its end.  One JSON object per line:

  prompt_token_ids           the prompt
  max_tokens                 how many tokens to generate (the answer has four)
  probe_positions            positions of the middle queries' KEY tokens: the row that predicts a first digit
  expected_probe_token_ids   the first digit each probe row must predict
  answer_token_ids           the four digits that answer the query at the end

Standard library only, with its own generator, so that the same seed gives the same prompts everywhere.
"""
import argparse
import json
import os
import re
import sys

# The fixture's token ids.
BOS, EOS, PAD = 0, 1, 2
RECORD, END, ALIAS, QUERY = 3, 4, 5, 6  # "\n#", ";", "=", "\n?"
DIGIT0 = 7
WORD0 = 17
VOCAB_SIZE = 2048
WORDS = VOCAB_SIZE - WORD0
SUCCESSORS = 4

_MASK = (1 << 64) - 1


def mix64(x):
    """The splitmix64 finaliser."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def successor(word, branch):
    """Word index that may follow `word` in Markov filler; each word has SUCCESSORS of them."""
    return mix64(word * SUCCESSORS + branch) % WORDS


class Rng:
    """splitmix64."""

    def __init__(self, seed):
        self.state = mix64(seed)

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        x = self.state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        return (x ^ (x >> 31)) % n

    def sample(self, items, count):
        """`count` distinct items in random order (a partial Fisher-Yates shuffle)."""
        items = list(items)
        if count > len(items):
            raise ValueError(f"cannot draw {count} of {len(items)}")
        for i in range(count):
            j = i + self.below(len(items) - i)
            items[i], items[j] = items[j], items[i]
        return items[:count]


def fixture_vocabulary():
    """Texts by id.  Words are invented from two or three syllables; nothing comes from real text."""
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    pairs = [a + b for a in syllables for b in syllables]
    pairs = Rng(2048).sample(pairs, WORDS)
    words = [" " + w + (syllables[mix64(i) % len(syllables)] if i % 4 == 3 else "")
             for i, w in enumerate(pairs)]
    texts = ["<bos>", "<eos>", "<pad>", "\n#", ";", "=", "\n?"] + [str(d) for d in range(10)] + words
    assert len(texts) == VOCAB_SIZE and len(set(texts)) == VOCAB_SIZE
    return texts


class Format:
    """Which tokens make up a record, a query and the filler."""

    def __init__(self, bos, record, end, query, digits, words, markov):
        self.bos = bos
        self.record = record  # tokens that open a record
        self.end = end
        self.query = query  # tokens that open a query
        self.digits = digits
        self.words = words
        self.markov = markov  # whether filler has Markov and echo runs in addition to random words

    def filler(self, rng, count):
        words = self.words
        n = len(words)
        if not self.markov:
            return [words[rng.below(n)] for _ in range(count)]
        out = []
        while len(out) < count:
            length = 12 + rng.below(29)
            kind = rng.below(100)
            if kind < 50:
                run = [words[rng.below(n)] for _ in range(length)]
            elif kind < 85:
                word = rng.below(n)
                run = []
                for _ in range(length):
                    run.append(words[word])
                    word = successor(word, rng.below(SUCCESSORS))
            else:  # echo: a short phrase over and over
                phrase = [words[rng.below(n)] for _ in range(2 + rng.below(7))]
                run = [phrase[i % len(phrase)] for i in range(length)]
            out += run
        return out[:count]


def fixture_format(vocab_path=None):
    texts = fixture_vocabulary()
    if vocab_path:
        with open(vocab_path, encoding="utf-8") as f:
            if json.load(f) != texts:
                raise ValueError(f"{vocab_path}: not the fixture's vocabulary")
    return Format(BOS, [RECORD], [END], [QUERY], list(range(DIGIT0, DIGIT0 + 10)),
                  list(range(WORD0, VOCAB_SIZE)), True)


def needle_7m_format(tokenizer_path):
    """needle-7m's tokens: marks of two tokens, words of one with a leading space, plain random filler."""
    with open(tokenizer_path, encoding="utf-8") as f:
        vocab = json.load(f)["model"]["vocab"]
    space, newline = "\u0120", "\u010a"  # how byte-level BPE writes the two
    words = sorted(i for t, i in vocab.items() if re.fullmatch(space + "[A-Za-z]{2,}", t))
    return Format(0, [vocab[newline], vocab["#"]], [vocab[";"]], [vocab[newline], vocab["?"]],
                  [vocab[str(d)] for d in range(10)], words, False)


def spread(rng, begin, end, count, length):
    """Starts of `count` disjoint spans of `length` tokens, uniform over [begin, end)."""
    free = end - begin - count * length
    if free < 0:
        raise ValueError(f"{count} spans of {length} tokens do not fit in {end - begin}")
    return [begin + o + i * length for i, o in enumerate(sorted(rng.below(free + 1) for _ in range(count)))]


def make_prompt(fmt, tokens, records, queries, mode, seed, max_tokens=4, id_=None):
    rng = Rng(seed)
    record_length = len(fmt.record) + 5 + len(fmt.end)
    query_length = len(fmt.query) + 5
    tail = len(fmt.query) + 1
    keys = rng.sample(fmt.words, records)
    digits = [[fmt.digits[rng.below(10)] for _ in range(4)] for _ in range(records)]
    record_starts = spread(rng, 1, tokens // 3, records, record_length)
    query_starts = spread(rng, tokens // 3, tokens - tail, queries, query_length)
    order = rng.sample(range(records), records)
    asked = [order[0 if mode == "one" else i % records] for i in range(queries + 1)]

    ids = [fmt.bos] + fmt.filler(rng, tokens - 1)
    for start, key, ds in zip(record_starts, keys, digits):
        ids[start:start + record_length] = fmt.record + [key] + ds + fmt.end
    probes = []
    for start, r in zip(query_starts, asked):
        ids[start:start + query_length] = fmt.query + [keys[r]] + digits[r]
        probes.append(start + len(fmt.query))
    ids[tokens - tail:] = fmt.query + [keys[asked[-1]]]
    return {
        "id": id_ if id_ is not None else f"{mode}-{tokens}-{seed}",
        "prompt_token_ids": ids,
        "max_tokens": max_tokens,
        "probe_positions": probes,
        "expected_probe_token_ids": [digits[r][0] for r in asked[:-1]],
        "answer_token_ids": digits[asked[-1]],
    }


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--tokens", type=int, required=True, help="prompt length")
    ap.add_argument("--records", type=int, default=8)
    ap.add_argument("--queries", type=int, default=8, help="answered queries in the middle")
    ap.add_argument("--mode", choices=["one", "all"], default="all",
                    help="one: every query asks for one record; all: for the records in turn")
    ap.add_argument("--count", type=int, default=1)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--max-tokens", type=int, default=4)
    ap.add_argument("--format", choices=["fixture", "needle-7m"], default="fixture")
    ap.add_argument("--vocab", default=os.path.join(here, "fixture", "vocab.json"),
                    help="the fixture's vocab.json")
    ap.add_argument("--tokenizer", help="needle-7m's tokenizer.json")
    args = ap.parse_args()
    if args.format == "needle-7m":
        if not args.tokenizer:
            ap.error("--format needle-7m needs --tokenizer")
        fmt = needle_7m_format(args.tokenizer)
    else:
        fmt = fixture_format(args.vocab)
    if args.records < 1:
        ap.error("--records must be at least 1")
    for i in range(args.count):
        seed = mix64(args.seed * 1000003 + i)
        try:
            prompt = make_prompt(fmt, args.tokens, args.records, args.queries, args.mode, seed,
                                 args.max_tokens, f"{args.mode}-{args.tokens}-s{args.seed}-{i}")
        except ValueError as e:
            sys.exit(f"make_prompts: {e}")
        print(json.dumps(prompt, separators=(",", ":")))


if __name__ == "__main__":
    main()
