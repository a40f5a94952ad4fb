"""Prompts for all threads of a campaign."""
import random
import threading


class EndlessPrompts:
    """Without end, and the same ones in every run: lengths and seeds follow from how many there were before. For any thread, each of which makes
    those that it asks for."""

    def __init__(self, first_tokens, last_tokens, make_prompt):
        self._lengths, self._make_prompt = (first_tokens, last_tokens), make_prompt
        self._lock = threading.Lock()
        self._numbers, self._seed = random.Random(7), 100

    def next(self):
        """RuntimeError with length, seed and cause where a prompt cannot be made; those after it can."""
        with self._lock:
            num_tokens, seed = self._numbers.randint(*self._lengths), self._seed
            self._seed += 1
        try:
            return self._make_prompt(num_tokens, seed=seed)
        except Exception as why:
            # Of a process that failed: what it said itself.
            said = (getattr(why, "stderr", None) or b"").decode(errors="replace").strip()
            raise RuntimeError(f"no prompt of {num_tokens} tokens with seed {seed}: {why} {said}".rstrip()) from why
