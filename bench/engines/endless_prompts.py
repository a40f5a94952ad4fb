# SPDX-License-Identifier: Apache-2.0
"""Prompts for all threads of a campaign."""
import random
import threading


class EndlessPrompts:
    """An endless sequence, the same in every run: length and seed follow from the number of prompts before. Any thread may call next(), and makes
    the prompt that it asks for."""

    def __init__(self, first_tokens, last_tokens, make_prompt):
        self._lengths, self._make_prompt = (first_tokens, last_tokens), make_prompt
        self._lock = threading.Lock()
        self._numbers, self._seed = random.Random(7), 100

    def next(self):
        """Raises RuntimeError with length, seed and cause if a prompt cannot be made. Later calls can still succeed."""
        with self._lock:
            num_tokens, seed = self._numbers.randint(*self._lengths), self._seed
            self._seed += 1
        try:
            return self._make_prompt(num_tokens, seed=seed)
        except Exception as why:
            # If a process failed, this is its own message.
            said = (getattr(why, "stderr", None) or b"").decode(errors="replace").strip()
            raise RuntimeError(f"no prompt of {num_tokens} tokens with seed {seed}: {why} {said}".rstrip()) from why
