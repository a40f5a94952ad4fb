# SPDX-License-Identifier: Apache-2.0
"""Rows of scores.plan_row as a table in Markdown."""

from prompts import TEXT


def _percent(entry, signed=False):
    text = f"{100 * entry['mean']:{'+' if signed else ''}.1f}"
    return text if entry["error"] is None else f"{text} ± {100 * entry['error']:.1f}"


def _number(entry, signed=False):
    text = f"{entry['mean']:{'+' if signed else ''}.3f}"
    return text if entry["error"] is None else f"{text} ± {entry['error']:.3f}"


def _line(cells):
    return "| " + " | ".join(cells) + " |\n"


def summary(rows):
    """Returns a line for each plan: the accuracy of dense attention, and the difference in points for the others."""
    kinds = list(rows[0]["kinds"])
    of_text = ["text: agrees", "text: nll"] if TEXT in kinds else []
    text = _line(["plan", "density", "recall", "1 %", *kinds, *of_text]) + "|---" * (len(kinds) + len(of_text) + 4) + "|\n"
    for row in rows:
        is_dense = row is rows[0]
        cells = [_percent(row["kinds"][kind]["accuracy" if is_dense else "accuracy_to_dense"], signed=not is_dense) for kind in kinds]
        if of_text:
            words = row["kinds"][TEXT]
            cells += [_percent(words["agreement"]), _number(words["nll" if is_dense else "nll_to_dense"], signed=not is_dense)]
        text += _line([row["plan"], f"{row['density']['mean']:.3f}", f"{row['recall']['mean']:.3f}", f"{row['recall_p01']['mean']:.2f}", *cells])
    return text


def _details(rows):
    text = _line(["plan", "kind", "probes", "accuracy", "to dense", "agrees with dense", "nll", "to dense"]) + "|---" * 8 + "|\n"
    for row in rows:
        for kind, score in row["kinds"].items():
            text += _line([row["plan"], kind, str(score["probes"]), _percent(score["accuracy"]), _percent(score["accuracy_to_dense"], signed=True),
                           _percent(score["agreement"]), _number(score["nll"]), _number(score["nll_to_dense"], signed=True)])
    return text


def markdown(about, rows):
    """rows: dense attention comes first; the others are compared with it."""
    return ("".join(f"- {key}: {value}\n" for key, value in about.items())
            + "\nFirst row: accuracy in %, mean negative log likelihood. Others: their difference to it. ±: one standard error, by prompt.\n\n"
            + summary(rows) + "\n" + _details(rows))
