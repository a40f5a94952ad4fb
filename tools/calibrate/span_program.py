# SPDX-License-Identifier: Apache-2.0
"""Chooses the rule of each head by an integer program, solved by HiGHS. Needs highspy and numpy.

x[head, rule] is 0 or 1, and is 1 for exactly one rule of each head. At each length the mean density of the heads is at most the budget. The program
minimises the loss that the rules are expected to cost at one length, and keeps the loss at each other length within a given bound.
"""

import itertools

import highspy
import numpy as np
from bad_input import BadInput

# Relative to the optimum. A smaller gap is not worth the search, because losses are first-order estimates.
_GAP = 1e-3


class Program:
    """losses: [lengths of the objective, heads, rules]; densities: [lengths, rules], at all lengths where the budget applies."""

    def __init__(self, losses, densities, budget):
        self._num_heads, self._num_rules = losses.shape[1:]
        # Losses are shares of the sum of each head's greatest loss, because HiGHS's tolerances are absolute.
        self._scale = losses.max(axis=2).sum(axis=1)
        self._scale[self._scale == 0] = 1
        self._losses = losses / self._scale[:, None, None]
        self._densities, self._budget = densities, budget

    def solve(self, objective, bounds):
        """Returns the heads' rules with the least loss `objective` and the others within `bounds` (by number, as shares), or None if infeasible."""
        heads, rules = self._num_heads, self._num_rules
        rows = [np.tile(density, heads) / heads for density in self._densities]
        upper = [self._budget] * len(rows)
        for other, bound in bounds.items():
            rows.append(self._losses[other].ravel())
            upper.append(bound)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = heads * rules, heads + len(rows)
        lp.col_cost_ = self._losses[objective].ravel()
        lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.ones(lp.num_col_)
        lp.row_lower_ = np.concatenate([np.ones(heads), np.full(len(rows), -highspy.kHighsInf)])
        lp.row_upper_ = np.concatenate([np.ones(heads), upper])
        lp.integrality_ = [highspy.HighsVarType.kInteger] * lp.num_col_
        # Each column has its head's row, then all the others.
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.arange(lp.num_col_ + 1) * (1 + len(rows))
        index = np.empty((lp.num_col_, 1 + len(rows)), dtype=np.int32)
        index[:, 0] = np.arange(lp.num_col_) // rules
        index[:, 1:] = heads + np.arange(len(rows))
        lp.a_matrix_.index_ = index.ravel()
        lp.a_matrix_.value_ = np.concatenate([np.ones((lp.num_col_, 1)), np.stack(rows, axis=1)], axis=1).ravel()
        solver = highspy.Highs()
        for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0), ("mip_rel_gap", _GAP)):
            solver.setOptionValue(name, value)
        solver.passModel(lp)
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"HiGHS ended with {solver.modelStatusToString(status)}")
        return np.array(solver.getSolution().col_value).reshape(heads, rules).argmax(axis=1)

    def losses_of(self, choice):
        """Returns the losses of a choice as shares, by length of the objective."""
        return self._losses[:, np.arange(self._num_heads), choice].sum(axis=1)


def pareto_choices(program, num_objectives, steps):
    """Returns the Pareto-optimal choices among those found, least loss at the first length first. As in MoA: minimising each length alone gives the
    ranges of losses; then each loss is minimised with the others bounded at each combination of `steps` equal parts of their ranges."""
    alone = [program.solve(length, {}) for length in range(num_objectives)]
    if any(choice is None for choice in alone):
        raise BadInput("no choice of rules is within the density")
    found = {tuple(choice) for choice in alone}
    ranges = np.array([program.losses_of(choice) for choice in alone])
    least, most = ranges.min(axis=0), ranges.max(axis=0)
    for length in range(num_objectives):
        others = [other for other in range(num_objectives) if other != length]
        for part in itertools.product(range(1, steps), repeat=len(others)):
            # The slack keeps HiGHS's rounding from making the least loss itself infeasible.
            bounds = {other: least[other] + (most[other] - least[other]) * step / steps + 1e-7 for other, step in zip(others, part)}
            choice = program.solve(length, bounds)
            if choice is not None:
                found.add(tuple(choice))
    losses = {choice: program.losses_of(list(choice)) for choice in found}
    kept = [choice for choice, own in losses.items()
            if not any((other <= own).all() and (other < own).any() for other in losses.values())]
    return sorted(kept, key=lambda choice: (tuple(losses[choice]), choice))


def spread(choices, count):
    """Returns at most `count` choices, evenly spread; with two or more, the first and the last are among them."""
    if len(choices) <= count:
        return choices
    if count == 1:
        return [choices[len(choices) // 2]]
    return [choices[round(i * (len(choices) - 1) / (count - 1))] for i in range(count)]
