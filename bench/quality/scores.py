# SPDX-License-Identifier: Apache-2.0
"""Scores a plan's results against dense attention's, by the kinds of prompts.py, with standard errors.

Probes of one prompt are not independent of each other; prompts are. Errors are therefore those of a ratio of sums over prompts (right probes over
probes). For a difference to dense, each prompt is its own control. n / (n - 1) is the usual correction.
"""

import math

from prompts import KINDS, LOOKUP_KINDS

LOOKUPS = "look-ups"  # all kinds of them together


def mean_and_error(sums, counts):
    """Returns sum(sums) / sum(counts), each a list over prompts, and its error. The error of a single prompt is not known and is None."""
    total, n = sum(counts), len(counts)
    mean = sum(sums) / total
    if n < 2:
        return mean, None
    residual = sum((s - mean * count) ** 2 for s, count in zip(sums, counts, strict=True))
    return mean, math.sqrt(n / (n - 1) * residual) / total


class KindScore:
    """The scores of one kind of probe, or of several together, under one plan."""

    def __init__(self, results, dense, prompts, *kinds):
        self.right, self.dense_right, self.agree, self.nll, self.dense_nll, self.counts = [], [], [], [], [], []
        for prompt in prompts:
            own, other = results[prompt["id"]], dense[prompt["id"]]
            at = [i for i, k in enumerate(prompt["probe_kinds"]) if k in kinds]
            if not at:
                continue
            targets = prompt["probe_target_ids"]
            self.counts.append(len(at))
            self.right.append(sum(own["probe_token_ids"][i] == targets[i] for i in at))
            self.dense_right.append(sum(other["probe_token_ids"][i] == targets[i] for i in at))
            self.agree.append(sum(own["probe_token_ids"][i] == other["probe_token_ids"][i] for i in at))
            self.nll.append(-sum(own["probe_logprobs"][i] for i in at))
            self.dense_nll.append(-sum(other["probe_logprobs"][i] for i in at))

    def as_row(self):
        def entry(sums):
            mean, error = mean_and_error(sums, self.counts)
            return {"mean": mean, "error": error}

        def difference(sums, others):
            return entry([a - b for a, b in zip(sums, others, strict=True)])

        return {"prompts": len(self.counts), "probes": sum(self.counts), "accuracy": entry(self.right),
                "accuracy_to_dense": difference(self.right, self.dense_right), "agreement": entry(self.agree), "nll": entry(self.nll),
                "nll_to_dense": difference(self.nll, self.dense_nll)}


def plan_row(plan, results, dense, prompts):
    """Returns the plan's row. results, dense: result lines of millrace-batch by id, all with status ok."""
    def over_prompts(field):
        mean, error = mean_and_error([results[prompt["id"]][field] for prompt in prompts], [1] * len(prompts))
        return {"mean": mean, "error": error}

    found = {kind for prompt in prompts for kind in prompt["probe_kinds"]}
    present = {kind: (kind,) for kind in (*KINDS, *LOOKUP_KINDS) if kind in found}
    if found.intersection(LOOKUP_KINDS):
        present[LOOKUPS] = LOOKUP_KINDS  # a prompt has only a dozen of each
    return {"plan": plan, "density": over_prompts("density"), "recall": over_prompts("recall"), "recall_p01": over_prompts("recall_p01"),
            "seconds": sum(results[prompt["id"]]["seconds"]["total"] for prompt in prompts),
            "kinds": {name: KindScore(results, dense, prompts, *kinds).as_row() for name, kinds in present.items()}}
