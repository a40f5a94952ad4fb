"""The rule of each head: an integer program, solved by HiGHS. Needs highspy and numpy.

x[head, rule] is 0 or 1, and 1 once a head. At each length the mean density of the heads is at most the budget; the loss that the rules are expected to
cost at one length is least, and that at the others at most what it is given.
"""

import itertools

import highspy
import numpy as np
from bad_input import BadInput

# Of the optimum. The rest is not worth the search: losses are first-order estimates.
_GAP = 1e-3


class Program:
    """losses: [lengths of the objective, heads, rules]; densities: [lengths, rules], at whatever lengths the budget holds."""

    def __init__(self, losses, densities, budget):
        self._num_heads, self._num_rules = losses.shape[1:]
        # In shares of what the widest choice of a head could cost: HiGHS's tolerances are absolute.
        self._scale = losses.max(axis=2).sum(axis=1)
        self._scale[self._scale == 0] = 1
        self._losses = losses / self._scale[:, None, None]
        self._densities, self._budget = densities, budget

    def solve(self, objective, bounds):
        """Rules of the heads, least in loss `objective`, with the others at most `bounds` (by number, as shares); None where there are none."""
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
        # By column: its head's row, then all the others.
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
        """As shares, by length of the objective."""
        return self._losses[:, np.arange(self._num_heads), choice].sum(axis=1)


def pareto_choices(program, num_objectives, steps):
    """Choices that none of the others found is better than at every length, least loss at the first length first. As in MoA: each length alone gives
    the range of losses; then each is made least with the others bounded by each combination of `steps` equal parts of their ranges."""
    alone = [program.solve(length, {}) for length in range(num_objectives)]
    if any(choice is None for choice in alone):
        raise BadInput("no choice of rules is within the density")
    found = {tuple(choice) for choice in alone}
    ranges = np.array([program.losses_of(choice) for choice in alone])
    least, most = ranges.min(axis=0), ranges.max(axis=0)
    for length in range(num_objectives):
        others = [other for other in range(num_objectives) if other != length]
        for part in itertools.product(range(1, steps), repeat=len(others)):
            # What HiGHS rounds away must not make the least loss itself infeasible.
            bounds = {other: least[other] + (most[other] - least[other]) * step / steps + 1e-7 for other, step in zip(others, part)}
            choice = program.solve(length, bounds)
            if choice is not None:
                found.add(tuple(choice))
    losses = {choice: program.losses_of(list(choice)) for choice in found}
    kept = [choice for choice, own in losses.items()
            if not any((other <= own).all() and (other < own).any() for other in losses.values())]
    return sorted(kept, key=lambda choice: (tuple(losses[choice]), choice))


def spread(choices, count):
    """At most `count` of them, the first and the last among them."""
    if len(choices) <= count:
        return choices
    if count == 1:
        return [choices[len(choices) // 2]]
    return [choices[round(i * (len(choices) - 1) / (count - 1))] for i in range(count)]
