# SPDX-License-Identifier: Apache-2.0
"""Whether a prompt's first token comes sooner if vLLM computes the prompt itself.

Both times are learnt while prompts run: vLLM's own from how long its prompts took to their first token, and Millrace's from how much longer than
the coordinator had foreseen its prompts took to theirs, with the way into vLLM's blocks. Any thread may call."""
import math
import threading
import time

# Prompts with fewer new tokens say little about longer ones, and are not timed.
LEAST_TIMED_TOKENS = 256
# What was seen longer ago than that does not count, so that a moment's trouble does not decide for good.
MAX_AGE_S = 600.0
# The weight of the latest observation, once there were some.
_LATEST_WEIGHT = 0.25
# To learn how fast vLLM is, it may compute a prompt that it should end at most so many times as late,
_LEARNING_FACTOR = 2.0
# or, while nothing at all is known of it, one of at most so many times `min_tokens`.
_FIRST_LENGTHS = 4


class RecentMeans:
    """Geometric means of a number by powers of two of a number of tokens."""

    def __init__(self, clock):
        self._clock = clock
        self._of = {}  # power -> (logarithm of the mean, observations, time of the last)

    def observe(self, tokens, value):
        power = round(math.log2(tokens))
        mean, count, _ = self._fresh().get(power, (0.0, 0, 0.0))
        weight = max(_LATEST_WEIGHT, 1 / (count + 1))
        self._of[power] = mean + weight * (math.log(value) - mean), count + 1, self._clock()

    def at(self, tokens):
        """(mean at the nearest length that is known, whether that is within a factor of about two), or None."""
        known = self._fresh()
        if not known:
            return None
        wanted = math.log2(tokens)
        power = min(known, key=lambda one: abs(one - wanted))
        return math.exp(known[power][0]), abs(power - wanted) <= 1

    def _fresh(self):
        now = self._clock()
        self._of = {power: seen for power, seen in self._of.items() if now - seen[2] <= MAX_AGE_S}
        return self._of


class WhenItPays:
    """`balance_tokens`: behind how many tokens a token's attention costs as much as all else. `clock` gives seconds."""

    def __init__(self, balance_tokens, min_tokens, clock=time.monotonic):
        self._balance = balance_tokens
        self._min_tokens = min_tokens
        self._clock = clock
        self._lock = threading.Lock()
        self._rates = RecentMeans(clock)  # vLLM's seconds a token of _work()
        self._delays = RecentMeans(clock)  # Millrace's time as a multiple of the foreseen one
        self._own = {}  # prompts that vLLM computes: id -> (new tokens, cached tokens, begin)

    def begins(self, request_id, new_tokens, cached_tokens):
        """vLLM computes this prompt from now on. Called again, it begins anew."""
        with self._lock:
            self._own[request_id] = new_tokens, cached_tokens, self._clock()

    def ended(self, request_id):
        """Its first token is there."""
        with self._lock:
            own = self._own.pop(request_id, None)
            if own is None or own[0] < LEAST_TIMED_TOKENS:
                return
            self._rates.observe(own[0], max(1e-6, self._clock() - own[2]) / self._work(*own[:2]))

    def forget(self, request_id):
        """It ended in another way."""
        with self._lock:
            self._own.pop(request_id, None)

    def pulled(self, num_tokens, foreseen_s, took_s):
        """A prompt of Millrace's has its first token. `took_s` counts from when Millrace was asked."""
        with self._lock:
            self._delays.observe(num_tokens, max(1e-6, took_s) / max(1e-6, foreseen_s))

    def why_own(self, new_tokens, cached_tokens, foreseen_s):
        """Why vLLM should compute this prompt: ("sooner" or "learning", text), or None if Millrace should. `foreseen_s`: until Millrace will have
        prefilled it; None if the coordinator has yet to learn that, too."""
        with self._lock:
            rate = self._rates.at(new_tokens)
            if rate is None:
                if foreseen_s is not None and not self._learns_of(new_tokens) and new_tokens <= _FIRST_LENGTHS * self._min_tokens:
                    return "learning", f"how long vLLM takes for {new_tokens} tokens is not known yet"
                return None
            if foreseen_s is None:
                return None
            delay = self._delays.at(new_tokens + cached_tokens)
            millraces_s = foreseen_s * (delay[0] if delay else 1.0)
            own_s = rate[0] * self._work(new_tokens, cached_tokens) + self._backlog_s()
            if own_s <= millraces_s:
                return "sooner", f"vLLM should take {own_s:.3f} s and Millrace {millraces_s:.3f} s"
            if not rate[1] and not self._learns_of(new_tokens) and own_s <= _LEARNING_FACTOR * millraces_s:
                return "learning", f"vLLM may take {own_s:.3f} s, by prompts of other lengths, and Millrace {millraces_s:.3f} s"
            return None

    def _learns_of(self, new_tokens):
        """Whether vLLM computes a prompt of about this length or a longer one, which will teach its time."""
        return any(2 * new >= new_tokens for new, _, _ in self._own.values())

    def _work(self, new_tokens, cached_tokens):
        """In tokens without attention: a token's attention grows with what comes before it."""
        return new_tokens * (1 + (cached_tokens + new_tokens / 2) / self._balance)

    def _backlog_s(self):
        """What vLLM still has to compute of other prompts, which come first."""
        left_s, now = 0.0, self._clock()
        for new_tokens, cached_tokens, began in self._own.values():
            rate = self._rates.at(new_tokens)
            left_s += max(0.0, rate[0] * self._work(new_tokens, cached_tokens) - (now - began)) if rate else 0.0
        return left_s
