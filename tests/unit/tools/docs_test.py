#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/check_docs.py and tools/wrap_docs.py on text made here."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import check_docs  # noqa: E402
import wrap_docs  # noqa: E402

WORDS = " ".join(f"word{i}" for i in range(40))


class Wrap(unittest.TestCase):
    def wrapped(self, text):
        changed = wrap_docs.wrapped(text, "test")
        self.assertEqual(wrap_docs.wrapped(changed, "test"), changed)
        return changed

    def test_fills_a_paragraph_with_a_long_line_and_changes_no_word(self):
        changed = self.wrapped(f"short\n{WORDS}\n\nnext\nparagraph\n")
        self.assertEqual(changed.split(), f"short {WORDS} next paragraph".split())
        self.assertLessEqual(max(map(len, changed.split("\n"))), check_docs.MAX_COLUMNS)
        self.assertTrue(changed.startswith("short word0 ") and changed.endswith("\n\nnext\nparagraph\n"))

    def test_items_keep_their_indentation(self):
        changed = self.wrapped(f"1. first\n   - {WORDS}\n2. second\n")
        lines = changed.split("\n")
        self.assertEqual((lines[0], lines[-2]), ("1. first", "2. second"))
        self.assertTrue(lines[1].startswith("   - word0"))
        self.assertTrue(all(line.startswith("     word") for line in lines[2:-2]) and len(lines) > 4)

    def test_breaks_neither_code_nor_blocks_nor_headings(self):
        code = "`" + "x " * 50 + "y`"
        text = f"# {WORDS}\n\n```\n{WORDS}\n```\n\n{WORDS} {code}\n"
        changed = self.wrapped(text)
        self.assertIn(f"# {WORDS}\n\n```\n{WORDS}\n```\n", changed)
        self.assertIn(code, changed)

    def test_no_line_begins_with_what_would_be_markup(self):
        for mark in ("-", "+", "1.", "#", ">"):
            changed = self.wrapped(f"{'a ' * 59}{mark} {'b ' * 40}\n")
            self.assertFalse([line for line in changed.split("\n") if line.startswith(f"{mark} ")], mark)

    def test_a_wide_table_becomes_a_list(self):
        changed = self.wrapped(
            f"| option | default | |\n|---|---|---|\n| `--a` | 1 | {WORDS} |\n| `--b` | | b |\n| `--c` | required | c |\n"
        )
        self.assertTrue(changed.startswith("- `--a` (default: 1): word0"))
        self.assertTrue(changed.endswith("- `--b`: b\n- `--c` (required): c\n"))
        changed = self.wrapped(f"| what | who | when |\n|---|---|---|\n| a | b | {WORDS} |\n")
        self.assertTrue(changed.startswith("- a. *who*: b. *when*: word0"))

    def test_tables_that_fit_and_tables_of_figures_stay(self):
        fits = "| a | b |\n|---|---|\n| 1 | 2 |\n"
        self.assertEqual(self.wrapped(fits), fits)
        figures = f"| a | b | c |\n|---|---|---|\n| {WORDS} | 1 | 2.5 |\n"
        self.assertEqual(self.wrapped(figures), figures)


class Names(unittest.TestCase):
    def test_knows_a_commit_from_other_words(self):
        text = (
            "c2a45ac2, (e90828a), `0a64c98`; not 1048576, defaced, sha256 " + "0a" * 32 + ", a/b1c2d3e4.txt, v-1a2b3c4d"
        )
        self.assertEqual(check_docs.COMMIT.findall(text), ["c2a45ac2", "e90828a", "0a64c98"])

    def test_finds_names_in_code_and_types_in_bold(self):
        text = "`--model DIR`\n\n**KvStore** and **not a type**\n\n```\nmillrace-client x\n```\n"
        self.assertEqual(
            sorted(check_docs.codes(text)), [(1, "--model DIR"), (3, "KvStore"), (6, "millrace-client x ")]
        )

    def test_names_that_are_nowhere_are_offences(self):
        offences = lambda code: [reason for _, reason in check_docs.offences(code, "docs/x.md")]  # noqa: E731
        self.assertEqual(offences("--no-such-" "option"), ["no program has this option"])
        self.assertEqual(offences("no_such_" "field"), ["no such field or function"])
        self.assertEqual(offences("NoSuch" "Type"), ["no such type"])
        self.assertEqual(offences('{"no_such_' 'key": 1}'), ["no such JSON field"])
        self.assertEqual(offences("tools/no_such.py"), ["no such file or folder"])
        for known in ("--head-plan", "cached_tokens", "KvStore", '{"prompt_token_ids": []}', "tools/check_docs.py"):
            self.assertEqual(offences(known), [], known)

    def test_reads_the_fields_that_a_list_or_a_table_begins_with(self):
        text = "- `a`, `b.c` (string): x\n- text `d`\n| `e[]` | x |\n"
        self.assertEqual(list(check_docs.listed_fields(text)), [(1, "a"), (1, "c"), (3, "e")])


if __name__ == "__main__":
    unittest.main()
