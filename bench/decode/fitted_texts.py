# SPDX-License-Identifier: Apache-2.0
"""Prose and code that bench/quality finds on this machine, split into four fifths to fit something on and one fifth to judge it by."""

import os
import random

FITTED_SHARE = 0.8
FITTED_TOKENS = 1024
# The most that is used of a code file; otherwise one file could fill a whole prompt or more.
CODE_CHARACTERS = 12_000


def cut(tokenizer, texts, count, num_tokens):
    """Concatenates the texts and cuts them into `count` prompts of num_tokens tokens."""
    prompts, token_ids = [], []
    for text in texts:
        token_ids += tokenizer.encode(text + "\n\n").ids
        while len(token_ids) >= num_tokens:
            prompts.append(token_ids[:num_tokens])
            token_ids = token_ids[num_tokens:]
            if len(prompts) == count:
                return prompts
    raise SystemExit(f"too few texts for {count} prompts of {num_tokens} tokens")


def make_texts(model, num_fitted, judged_tokens):
    """Returns (to fit, to judge), lists of token ids. num_fitted: numbers of prose and code prompts. Two of prose and one of code are judged."""
    from text_pool import code_files, prose_paragraphs
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
    fitted, judged = [], []
    fit_order, judge_order = random.Random(1), random.Random(2)
    for texts, count, num_judged in (
            (prose_paragraphs(), num_fitted[0], 2), ([text[:CODE_CHARACTERS] for text in code_files()], num_fitted[1], 1)):
        border = int(FITTED_SHARE * len(texts))
        to_fit, to_judge = texts[:border], texts[border:]
        fit_order.shuffle(to_fit)
        judge_order.shuffle(to_judge)  # neighbouring texts are much alike
        fitted.append(cut(tokenizer, to_fit, count, FITTED_TOKENS))
        judged += cut(tokenizer, to_judge, num_judged, judged_tokens)
    # The last two are not fitted but give the recall: one is prose, one is code.
    prose, code = fitted
    return [*prose[1:], *code[1:], prose[0], code[0]], judged
