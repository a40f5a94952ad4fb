#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/quality/recall_loss.py on numbers that were worked out by hand."""

import os
import sys
import unittest
from xml.etree import ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench", "quality"))

from recall_loss import by_recall, correlations, points, rank_correlation  # noqa: E402
from recall_loss_svg import draw  # noqa: E402


def result(tokens, logprobs, recall, by_head=None):
    line = {"probe_token_ids": tokens, "probe_logprobs": logprobs, "density": 0.5, "recall": recall, "recall_p01": recall / 2}
    return {**line, "recall_by_head": by_head} if by_head else line


PROMPT = {"id": "a", "probe_target_ids": [1, 2, 3, 4], "probe_kinds": ["text", "text", "copy", "copy"]}
DENSE = {"a": result([1, 2, 3, 4], [-1, -1, -1, -1], 1.0)}
HEADS = {"mean": [[1.0, 0.5], [0.75, 0.25]], "least": [[1.0, 0.25], [0.5, 0.0]]}


class RankCorrelation(unittest.TestCase):
    def test_orders_that_agree_and_that_do_not(self):
        self.assertAlmostEqual(rank_correlation([1, 2, 9], [10, 20, 21]), 1)
        self.assertAlmostEqual(rank_correlation([1, 2, 9], [3, 2, 1]), -1)

    def test_equal_values_share_a_rank(self):
        # Ranks 0, 1.5, 1.5, 3 and 0, 1, 2, 3: 4.5 over the root of 4.5 * 5.
        self.assertAlmostEqual(rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]), 4.5 / (4.5 * 5) ** 0.5)

    def test_what_never_changes_has_none(self):
        self.assertIsNone(rank_correlation([1, 1], [1, 2]))


class Points(unittest.TestCase):
    def test_loss_is_beside_dense_by_kind(self):
        copy, text = points("sparse", {"a": result([1, 9, 9, 9], [-1, -2, -3, -4], 0.8, HEADS)}, DENSE, [PROMPT])
        self.assertEqual((copy["kind"], copy["accuracy"], copy["nll"], copy["probes"]), ("copy", 1, 2.5, 2))
        self.assertEqual((text["kind"], text["accuracy"], text["nll"]), ("text", 0.5, 0.5))
        self.assertEqual((text["recall"], text["worst head"], text["least row, tenth of heads"]), (0.8, 0.25, 0))

    def test_without_heads_there_is_nothing_of_heads(self):
        point = points("sparse", {"a": result([1, 2, 3, 4], [-1] * 4, 0.8)}, DENSE, [PROMPT])[0]
        self.assertNotIn("worst head", point)
        self.assertIn("recall_p01", point)


class Tables(unittest.TestCase):
    made = [p for recall, tokens in ((0.5, [9, 9, 9, 9]), (0.7, [1, 2, 9, 9]), (0.95, [1, 2, 3, 4]))
            for p in points(f"at {recall}", {"a": result(tokens, [-1] * 4, recall, HEADS)}, DENSE, [PROMPT])]

    def test_more_recall_with_less_loss_is_a_negative_correlation(self):
        found = correlations(self.made)
        self.assertLess(found["text"]["recall"]["accuracy"], -0.8)
        self.assertIsNone(found["text"]["worst head"]["accuracy"])  # the same in all plans

    def test_losses_by_recall_are_means_and_worst(self):
        rows = by_recall(self.made, "recall", [0, 0.6, 1.01])
        self.assertEqual([(low, high, count) for low, high, count, _ in rows], [(0, 0.6, 1), (0.6, 1.01, 2)])
        self.assertEqual(rows[1][3], {"copy": (0.5, 1), "text": (0, 0)})

    def test_the_picture_has_each_point_under_either_recall(self):
        circles = [e for e in ElementTree.fromstring(draw(self.made)).iter() if e.tag.endswith("circle")]
        self.assertEqual(len(circles), 2 * len(self.made) + 3)  # and one for each plan


if __name__ == "__main__":
    unittest.main()
