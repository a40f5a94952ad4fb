# SPDX-License-Identifier: Apache-2.0
"""Reads prompts as token ids, one JSON object a line, as for millrace-batch and from bench/quality. Standard library only."""

import json

from bad_input import BadInput
from spans import first_dense_row


class Prompt:
    """token_ids, and the rows whose next token's loss counts: (row, that token)."""

    def __init__(self, name, token_ids, targets):
        self.name, self.token_ids, self.targets = name, token_ids, targets

    def cut(self, num_tokens):
        """Returns the first num_tokens of the prompt. Each row predicts the next token, so the last row predicts nothing."""
        return Prompt(self.name, self.token_ids[:num_tokens], [(row, token) for row, token in self.targets if row < num_tokens - 1])


def _short(value):
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _integers(line, field, limit, at_least=1):
    values = line.get(field)
    if not isinstance(values, list) or len(values) < at_least:
        raise BadInput(f"{field} is {_short(values)}, expected a list of at least {at_least} integers")
    for i, value in enumerate(values):
        if type(value) is not int or not 0 <= value < limit:
            raise BadInput(f"{field}[{i}] is {_short(value)}, expected an integer from 0 to {limit - 1}")
    return values


def _targets(line, token_ids, vocabulary):
    """Returns the targets of the probes if the prompt has any, else every next token of the second half: late tokens can look back furthest."""
    if "probe_positions" not in line:
        return [(row, token_ids[row + 1]) for row in range(len(token_ids) // 2, len(token_ids) - 1)]
    rows = _integers(line, "probe_positions", len(token_ids))
    if "probe_target_ids" not in line:
        if max(rows) == len(token_ids) - 1:
            raise BadInput(f"probe_positions has {len(token_ids) - 1}, the last token, and there are no probe_target_ids")
        return [(row, token_ids[row + 1]) for row in rows]
    tokens = _integers(line, "probe_target_ids", vocabulary)
    if len(tokens) != len(rows):
        raise BadInput(f"probe_target_ids has {len(tokens)} entries, probe_positions {len(rows)}")
    return list(zip(rows, tokens))


def parse_prompt(text, number, vocabulary):
    try:
        line = json.loads(text)
    except ValueError as why:
        raise BadInput(f"not JSON: {why}") from None
    if not isinstance(line, dict):
        raise BadInput(f"{_short(line)}: expected an object")
    name = line.get("id", str(number))
    if not isinstance(name, str):
        raise BadInput(f"id is {_short(name)}, expected text")
    token_ids = _integers(line, "prompt_token_ids", vocabulary, at_least=2)
    return Prompt(name, token_ids, _targets(line, token_ids, vocabulary))


def read_prompts(path, vocabulary):
    prompts = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    prompts.append(parse_prompt(text, number, vocabulary))
                except BadInput as why:
                    raise BadInput(f"{path}:{number}: {why}") from None
    except (OSError, UnicodeDecodeError) as why:
        raise BadInput(f"{path}: {getattr(why, 'strerror', None) or why}") from None
    if not prompts:
        raise BadInput(f"{path}: no prompts")
    return prompts


def by_length(prompts, lengths, path):
    """Groups prompts by length. Each prompt belongs to the largest length that it reaches, and is cut to it."""
    groups = {length: [] for length in sorted(lengths)}
    for length in groups:
        if first_dense_row(length) == 0:
            raise BadInput(f"length {length}: all rows run densely under every plan")
    for prompt in prompts:
        reached = [length for length in groups if length <= len(prompt.token_ids)]
        if not reached:
            raise BadInput(f"{path}: prompt {prompt.name} has {len(prompt.token_ids)} tokens, the shortest length is {min(groups)}")
        cut = prompt.cut(reached[-1])
        if not cut.targets:
            raise BadInput(f"{path}: prompt {prompt.name}: no probe before token {reached[-1]}, to which it is cut")
        groups[reached[-1]].append(cut)
    for length, group in groups.items():
        if not group:
            raise BadInput(f"{path}: no prompt for length {length}: it needs one of {length} tokens or more, below the next length")
    return groups
