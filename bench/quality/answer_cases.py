# SPDX-License-Identifier: Apache-2.0
"""Cases for decoding: a prompt of prompts.py cut before something that it asks for, and the right answer.

{"id", "kind", "prompt_token_ids", "forced_token_ids", "num_unjudged"}: the forced tokens follow the prompt, and all but the first `num_unjudged` of
them are judged. The prompt ends one token before what is judged, so that every judged token is decoded. "Asked later" has the same pass keys with
the question after the prompt.
"""

ASKED_LATER = "pass key, asked later"
KINDS = ("plain text", "paragraph copy", "word list", "pass key", ASKED_LATER)
ANSWERS_IN_PROMPT = KINDS[1:4]
KEYS = 2  # of each task prompt


def case(name, kind, token_ids, first, count, prompt_end=None):
    """Judges token_ids[first : first + count]. prompt_end: where the prompt ends, by default and at the latest one token before `first`."""
    end = first - 1 if prompt_end is None else prompt_end
    return {"id": f"{name} {kind}", "kind": kind, "prompt_token_ids": token_ids[:end], "forced_token_ids": token_ids[end:first + count],
            "num_unjudged": first - end}


def rfind(token_ids, wanted, end):
    return next(i for i in range(end - len(wanted), -1, -1) if token_ids[i:i + len(wanted)] == wanted)


def cases_of(maker, number, answer_tokens):
    """Yields the cases of a task prompt and a text prompt. maker: a PromptMaker."""
    from prompts import KEY_DIGITS, KEY_FIRST, KEY_LATER, PARAGRAPH, WORD_LIST, runs
    task, text = maker.task(number), maker.text(number)
    ids, name = task["prompt_token_ids"], task["id"]
    yield case(text["id"], KINDS[0], text["prompt_token_ids"], len(text["prompt_token_ids"]) - answer_tokens, answer_tokens)
    for kind, probes in ((KINDS[1], PARAGRAPH), (KINDS[2], WORD_LIST)):
        first, count = runs(task, (probes,))[-1]
        yield case(name, kind, ids, first, min(count, answer_tokens))
    for number, (first, count) in enumerate(runs(task, (KEY_FIRST, KEY_LATER))[-KEYS:]):
        yield case(f"{name} key {number}", KINDS[3], ids, first, min(count, KEY_DIGITS))
        question = rfind(ids, maker.encode("The pass key for"), first)
        yield case(f"{name} key {number}", ASKED_LATER, ids, first, min(count, KEY_DIGITS), question)
