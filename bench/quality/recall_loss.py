# SPDX-License-Identifier: Apache-2.0
"""How well a recall predicts what a plan loses: a point for each prompt and plan, rank correlations, and the loss by recall.

A point's loss for a kind is what its prompt loses against dense attention: accuracy and likelihood, each the mean over the probes.
"""

import bisect

from scores import KindScore

# Each predictor is read from a result line. `recall_by_head` comes from --recall-by-head: [layers][heads].
PREDICTORS = {
    "density": lambda line: line["density"],
    "recall": lambda line: line["recall"],
    "recall_p01": lambda line: line["recall_p01"],
    "worst head": lambda line: min(_heads(line)),
    "tenth of heads": lambda line: _quantile(_heads(line), 0.1),
    "least row, tenth of heads": lambda line: _quantile(sum(line["recall_by_head"]["least"], []), 0.1),
}
LOSSES = ("accuracy", "nll")


def _heads(line):
    return sum(line["recall_by_head"]["mean"], [])


def _quantile(values, share):
    return sorted(values)[int(share * (len(values) - 1))]


def points(plan, results, dense, prompts):
    """Returns [{plan, prompt, kind, probes, a number for each predictor, "accuracy", "nll"}]. results, dense: result lines by id. Predictors for
    which a line has no numbers are left out."""
    made = []
    for prompt in prompts:
        own = results[prompt["id"]]
        known = {name: read(own) for name, read in PREDICTORS.items() if "recall_by_head" in own or name in own}
        for kind in sorted(set(prompt["probe_kinds"])):
            score = KindScore(results, dense, [prompt], kind).as_row()
            made.append({"plan": plan, "prompt": prompt["id"], "kind": kind, "probes": score["probes"], **known,
                         "accuracy": 0 - score["accuracy_to_dense"]["mean"], "nll": score["nll_to_dense"]["mean"]})
    return made


def _ranks(values):
    """Returns ranks; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [(bisect.bisect_left(ordered, v) + bisect.bisect_right(ordered, v) - 1) / 2 for v in values]


def rank_correlation(xs, ys):
    """Returns Spearman's correlation, or None if one of the two is constant."""
    xs, ys = _ranks(xs), _ranks(ys)
    mean = (len(xs) - 1) / 2
    product = sum((x - mean) * (y - mean) for x, y in zip(xs, ys, strict=True))
    spread = sum((x - mean) ** 2 for x in xs) * sum((y - mean) ** 2 for y in ys)
    return product / spread ** 0.5 if spread > 0 else None


def correlations(of_points):
    """Returns {kind: {predictor: {loss: Spearman's correlation}}}, near -1 where more recall goes with less loss."""
    found = {}
    for kind in sorted({point["kind"] for point in of_points}):
        here = [point for point in of_points if point["kind"] == kind]
        found[kind] = {name: {loss: rank_correlation([p[name] for p in here], [p[loss] for p in here]) for loss in LOSSES}
                       for name in PREDICTORS if all(name in p for p in here)}
    return found


def by_recall(of_points, predictor, edges):
    """Returns [(low, high, points, {kind: mean accuracy lost, the most lost by a prompt})] over the points with low <= predictor < high."""
    rows = []
    for low, high in zip(edges, edges[1:]):
        here = [p for p in of_points if low <= p[predictor] < high]
        kinds = {}
        for kind in sorted({p["kind"] for p in here}):
            lost = [p["accuracy"] for p in here if p["kind"] == kind]
            kinds[kind] = (sum(lost) / len(lost), max(lost))
        if here:
            rows.append((low, high, len({(p["plan"], p["prompt"]) for p in here}), kinds))
    return rows
