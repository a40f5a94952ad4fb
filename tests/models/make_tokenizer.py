#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes fixture/tokenizer.json, which converts the text of the fixture's prompts to their token ids and back: each entry of vocab.json is a
token, <bos> comes first, and text that is not an entry becomes <pad>. Needs tokenizers (real/requirements.txt).

    make_tokenizer.py [--output tests/models/fixture/tokenizer.json]
"""

import argparse
import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

FIXTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixture")
SPECIAL = ("<bos>", "<eos>", "<pad>")


def make(vocabulary):
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n[#?]| [a-z]+|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 0)])
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=os.path.join(FIXTURE, "tokenizer.json"))
    args = parser.parse_args()
    with open(os.path.join(FIXTURE, "vocab.json"), encoding="utf-8") as file:
        vocabulary = json.load(file)
    with open(args.output, "w", encoding="utf-8") as file:
        file.write(make(vocabulary).to_str(pretty=False) + "\n")


if __name__ == "__main__":
    main()
