#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/quality/prompts.py with a tokenizer of words and digits."""

import os
import re
import sys
import types
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench", "quality"))

from prompts import (ASKED_SHARE, KEY_DIGITS, KINDS, LIST_WORDS, LOOKUP_KINDS, PLANTED_SHARE, TEXT, TOLD_SHARE, UNJUDGED_ROWS,  # noqa: E402
                     PromptMaker)

TOKENS = 4096


class WordTokenizer:
    """Tokens are words with the space before them, and digits and all other characters one by one. Token 0 begins a prompt."""

    def __init__(self):
        self.ids, self.texts = {"": 0}, [""]

    def encode(self, text, add_special_tokens=True):
        ids = [0] if add_special_tokens else []
        for token in re.findall(r" ?[^\W\d_]+|.", text, re.DOTALL):
            if token not in self.ids:
                self.ids[token] = len(self.texts)
                self.texts.append(token)
            ids.append(self.ids[token])
        return types.SimpleNamespace(ids=ids)

    def decode(self, ids):
        return "".join(self.texts[i] for i in ids)


class Prompts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = WordTokenizer()
        cls.maker = PromptMaker(cls.tokenizer, TOKENS, seed=1)
        cls.task, cls.prose, cls.code, cls.lookup = cls.maker.task(0), cls.maker.text(0), cls.maker.text(1), cls.maker.lookup(0)

    def targets(self, prompt, kind):
        """(position, token) pairs that the probes of a kind should predict."""
        return [(position + 1, target) for position, target, k in
                zip(prompt["probe_positions"], prompt["probe_target_ids"], prompt["probe_kinds"], strict=True) if k == kind]

    def test_every_prompt_has_its_length_and_begins_as_the_model_wants(self):
        for prompt in self.task, self.prose, self.code, self.lookup:
            self.assertEqual(len(prompt["prompt_token_ids"]), TOKENS)
            self.assertEqual(prompt["prompt_token_ids"][0], 0)

    def test_targets_are_the_tokens_behind_ascending_probes_before_the_dense_rows(self):
        for prompt in self.task, self.prose, self.code, self.lookup:
            ids, positions = prompt["prompt_token_ids"], prompt["probe_positions"]
            self.assertEqual(prompt["probe_target_ids"], [ids[i + 1] for i in positions])
            self.assertEqual(positions, sorted(set(positions)))
            self.assertLess(positions[-1] + 1, TOKENS - UNJUDGED_ROWS)

    def test_a_task_has_every_kind_but_text_in_its_second_part(self):
        for kind in KINDS:
            found = self.targets(self.task, kind)
            self.assertEqual(bool(found), kind != TEXT, kind)
            self.assertTrue(all(position > PLANTED_SHARE * TOKENS for position, _ in found))

    def test_what_is_asked_for_was_planted_in_the_first_part(self):
        ids = self.task["prompt_token_ids"]
        planted = self.tokenizer.decode(ids[:int(PLANTED_SHARE * TOKENS)])
        asked = self.tokenizer.decode(ids[int(PLANTED_SHARE * TOKENS):])
        for form, count in (rf"The pass key for (\w+ \w+) is \d{{{KEY_DIGITS}}}", 12), (rf"The words of \w+ \w+ are:(?: \w+){{{LIST_WORDS}}}\.", 3):
            found = {match[0] for match in re.finditer(form, asked)}
            self.assertEqual(len(found), count)
            for text in found:
                self.assertIn(text, planted)
        copies = self.targets(self.task, "paragraph copy")
        for position, _ in copies[::50]:
            self.assertIn(self.tokenizer.decode(ids[position - 6:position + 1]), planted)

    def test_probes_of_keys_are_its_digits(self):
        first, later = (self.targets(self.task, kind) for kind in ("key, first digit", "key, later digits"))
        self.assertEqual(len(later), (KEY_DIGITS - 1) * len(first))
        for position, token in first + later:
            self.assertTrue(self.tokenizer.decode([token]).strip().isdigit(), position)

    def test_queries_are_spread(self):
        positions = [position for position, _ in self.targets(self.task, "key, first digit")]
        self.assertGreater(positions[-1] - positions[0], 0.3 * TOKENS)

    def test_every_kind_of_look_up_is_asked_twelve_times_all_over_the_second_half(self):
        for kind in LOOKUP_KINDS:
            positions = [position for position, _ in self.targets(self.lookup, kind)]
            self.assertEqual(len(positions), 12, kind)
        positions = self.lookup["probe_positions"]
        self.assertGreater(positions[0], ASKED_SHARE * TOKENS - 1)
        self.assertLess(positions[0], (ASKED_SHARE + 0.05) * TOKENS)
        self.assertGreater(positions[-1], 0.94 * TOKENS)
        self.assertLess(max(b - a for a, b in zip(positions, positions[1:])), 0.06 * TOKENS)

    def test_a_fact_is_told_once_far_before_it_is_asked_for(self):
        ids = self.lookup["prompt_token_ids"]
        told, asked = self.tokenizer.decode(ids[:int(TOLD_SHARE * TOKENS)]), self.tokenizer.decode(ids[int(ASKED_SHARE * TOKENS):])
        facts = re.findall(r"(?:The code word for \w+ \w+ is|The home town of \w+ \w+ is|The opposite of \w+ is) \w+\.", asked)
        self.assertEqual(len(facts), 3 * 12)
        self.assertEqual(len(set(facts)), len(facts))
        for fact in facts:
            self.assertEqual((told.count(fact), asked.count(fact)), (1, 1))

    def test_a_look_up_has_one_answer_and_one_row(self):
        """No other fact begins like the question, and the rows around it ask for nothing."""
        ids, kinds = self.lookup["prompt_token_ids"], self.lookup["probe_kinds"]
        text = self.tokenizer.decode(ids)
        for kind in LOOKUP_KINDS:
            tokens = [token for _, token in self.targets(self.lookup, kind)]
            self.assertEqual(len(set(tokens)), len(tokens), kind)
        for position, kind in zip(self.lookup["probe_positions"], kinds, strict=True):
            words = 4 if kind == LOOKUP_KINDS[2] else 6
            question = self.tokenizer.decode(ids[position + 1 - words - 1:position + 1])
            self.assertEqual(text.count(question), 2, question)
        self.assertGreater(min(b - a for a, b in zip(self.lookup["probe_positions"], self.lookup["probe_positions"][1:])), 4)

    def test_a_look_up_prompt_tells_more_than_it_asks_for(self):
        told = self.tokenizer.decode(self.lookup["prompt_token_ids"][:int(TOLD_SHARE * TOKENS)])
        self.assertEqual(len(set(re.findall(r"The code word for \w+ \w+ is", told))), 12 + 4 + 2)

    def test_words_that_a_tokenizer_cannot_tell_apart_are_refused(self):
        letters = types.SimpleNamespace(encode=lambda text, **_: types.SimpleNamespace(ids=[ord(c) for c in text]),
                                        decode=lambda ids: "".join(map(chr, ids)))
        with self.assertRaisesRegex(ValueError, "2. nouns and 2. cities apart by their first token"):
            PromptMaker(letters, TOKENS, seed=1).lookup(0)

    def test_a_seed_gives_the_same_prompts_and_another_one_others(self):
        self.assertEqual(PromptMaker(self.tokenizer, TOKENS, seed=1).task(0), self.task)
        self.assertNotEqual(PromptMaker(self.tokenizer, TOKENS, seed=2).task(0), self.task)
        self.assertNotEqual(self.maker.task(1)["prompt_token_ids"], self.task["prompt_token_ids"])


if __name__ == "__main__":
    unittest.main()
