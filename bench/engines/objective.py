# SPDX-License-Identifier: Apache-2.0
"""Whether answers came as soon as promised, and how many of them did."""
import math
import statistics
from dataclasses import dataclass

# The share of an answer's gaps that must be short enough, where not their mean decides.
GAP_SHARE = 0.99


def percentile(values, share):
    """By nearest rank. None if there are no values."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1] if ordered else None


@dataclass(frozen=True)
class Objective:
    first_s: float = 5.0  # until the first token
    gap_s: float = 0.05  # between tokens

    def _is_in_time(self, outcome):
        return outcome.is_complete and not outcome.is_wrong and outcome.first_s <= self.first_s

    def is_met(self, outcome):
        """By the mean of the answer's gaps."""
        return self._is_in_time(outcome) and statistics.fmean(outcome.gaps_s or [0.0]) <= self.gap_s

    def is_met_steadily(self, outcome):
        """By GAP_SHARE of the answer's gaps."""
        return self._is_in_time(outcome) and (percentile(outcome.gaps_s, GAP_SHARE) or 0.0) <= self.gap_s

    def summary(self, outcomes, seconds):
        """Figures of all prompts that arrived within `seconds`. One without a first token counts as an endless wait (a percentile of which is None), and
        one without a whole answer meets no objective."""
        firsts = [math.inf if outcome.first_s is None else outcome.first_s for outcome in outcomes]
        gaps = [gap for outcome in outcomes for gap in outcome.gaps_s]
        met, steady = sum(map(self.is_met, outcomes)), sum(map(self.is_met_steadily, outcomes))
        return {"prompts": len(outcomes), "answered": sum(outcome.is_complete for outcome in outcomes), "wrong": sum(outcome.is_wrong for outcome in outcomes),
                "first token p50, s": _finite(percentile(firsts, 0.5)), "p99, s": _finite(percentile(firsts, 0.99)),
                "between tokens p50, ms": _ms(percentile(gaps, 0.5)), "p99, ms": _ms(percentile(gaps, 0.99)),
                "goodput, 1/s": met / seconds, "of all": met / max(1, len(outcomes)),
                "steady goodput, 1/s": steady / seconds, "steady, of all": steady / max(1, len(outcomes))}


def _ms(seconds):
    return None if seconds is None else 1000 * seconds


def _finite(seconds):
    return None if seconds == math.inf else seconds
