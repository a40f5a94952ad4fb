# SPDX-License-Identifier: Apache-2.0
"""When prompts arrive whatever the service does, and how long they are."""
import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    at_s: float
    num_tokens: int


def poisson_arrivals(rate, seconds, tokens, seed):
    """Arrivals within `seconds`, on average `rate` a second. Lengths are log-uniform between the two of `tokens`. With the same seed, prompts have the
    same lengths in the same order at every rate, and the gaps between them the same proportions."""
    gaps, lengths = random.Random(f"gaps {seed}"), random.Random(f"lengths {seed}")
    least, most = map(math.log, tokens)
    arrivals, at_s = [], gaps.expovariate(1) / rate
    while at_s < seconds:
        arrivals.append(Arrival(at_s, round(math.exp(lengths.uniform(least, most)))))
        at_s += gaps.expovariate(1) / rate
    return arrivals


def log_middle(least, most):
    """The median of such lengths."""
    return round(math.sqrt(least * most))
