#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/monitoring/render without a Prometheus: what it asks, how it reads the answers, and where it puts the panels."""
import json
import os
import sys
import unittest
import xml.etree.ElementTree

MONITORING = os.path.join(os.environ["MILLRACE_SOURCE_DIR"], "deploy", "monitoring")
sys.path.insert(0, MONITORING)

from dashboard_queries import QueryError, Series, TimeRange, as_pattern, ask, built_in_variables, fill_in, legend, step_of, variables  # noqa: E402
from dashboard_svg import draw, layout_faults, panel_width, ticks, with_unit  # noqa: E402

HOUR = TimeRange(7200, 10800, 15)


class FakePrometheus:
    """Answers with `data` and records the queries."""

    def __init__(self, data):
        self.data = data
        self.asked = []

    def get(self, path, **query):
        self.asked.append((path, query))
        return self.data


def matrix(*series):
    return {"resultType": "matrix", "result": [{"metric": labels, "values": values} for labels, values in series]}


def panel(number, x, y, w, h, kind="timeseries", **more):
    return {"type": kind, "id": number, "title": f"panel {number}", "gridPos": {"x": x, "y": y, "w": w, "h": h},
            "fieldConfig": {"defaults": {"unit": "short", "min": 0}, "overrides": []}, **more}


def pictured(panels, found):
    """(texts, rectangles as (x, y, width, height), paths) of a dashboard that is 1600 pixels wide."""
    root = xml.etree.ElementTree.fromstring(draw({"title": "T", "panels": panels}, found, HOUR, 1600, "an hour"))
    space = "{http://www.w3.org/2000/svg}"
    return ([text.text for text in root.iter(space + "text")],
            [tuple(float(rect.get(name, 0)) for name in ("x", "y", "width", "height")) for rect in root.iter(space + "rect")],
            [path.get("d") for path in root.iter(space + "path")])


class VariablesTest(unittest.TestCase):
    def test_each_way_to_name_a_variable_is_filled_in(self):
        self.assertEqual(fill_in('a{g=~"$group"}[$__rate_interval] ${group} ${group:regex} [[group]]', {"group": "x", "__rate_interval": "1m"}),
                         'a{g=~"x"}[1m] x x x')

    def test_a_longer_name_is_not_taken_for_a_shorter_one(self):
        self.assertEqual(fill_in("$group_name $group", {"group": "x", "group_name": "y"}), "y x")

    def test_a_variable_that_nobody_knows_is_an_error(self):
        with self.assertRaisesRegex(QueryError, "no variable elsewhere"):
            fill_in("a[$elsewhere]", {"group": "x"})

    def test_the_rate_interval_holds_four_scrapes_and_a_step(self):
        self.assertEqual(built_in_variables(15, HOUR)["__rate_interval"], "60s")
        self.assertEqual(built_in_variables(60, HOUR)["__rate_interval"], "75s")
        self.assertEqual(built_in_variables(0.5, TimeRange(0, 60, 0.2))["__rate_interval"], "800ms")
        self.assertEqual(built_in_variables(15, HOUR)["__range"], "3600s")

    def test_a_step_is_no_shorter_than_a_pixel_and_a_scrape(self):
        self.assertEqual(step_of(780, HOUR), 15)
        self.assertEqual(step_of(100, HOUR), 60)
        self.assertEqual(step_of(780, TimeRange(0, 7 * 86400, 15)), 900)

    def test_all_groups_are_a_pattern_of_their_names_and_a_chosen_one_is_itself(self):
        query = {"query": "label_values(millrace_leases, group)"}
        several = {"templating": {"list": [{"name": "group", "type": "query", "query": query, "includeAll": True}]}}
        prometheus = FakePrometheus(["a.b", "c"])
        self.assertEqual(variables(several, prometheus, HOUR, {}), {"group": r"(a\\.b|c)"})
        self.assertEqual(prometheus.asked, [("/api/v1/label/group/values", {"start": 7200, "end": 10800, "match[]": "millrace_leases"})])
        self.assertEqual(variables(several, prometheus, HOUR, {"group": "c"}), {"group": "c"})
        several["templating"]["list"][0]["allValue"] = ".*"
        self.assertEqual(variables(several, prometheus, HOUR, {}), {"group": ".*"})

    def test_a_variable_without_a_choice_of_all_is_its_first_value(self):
        one = {"templating": {"list": [{"name": "group", "type": "query", "query": "label_values(group)"}]}}
        self.assertEqual(variables(one, FakePrometheus(["a", "b"]), HOUR, {}), {"group": "a"})

    def test_one_value_needs_no_parentheses(self):
        self.assertEqual(as_pattern(["g-0"]), "g-0")
        self.assertEqual(as_pattern(["a.b"]), r"a\\.b")
        self.assertEqual(as_pattern([r"a\b"]), "a" + 4 * "\\" + "b")


class AnswersTest(unittest.TestCase):
    def test_steps_without_a_number_are_gaps(self):
        prometheus = FakePrometheus(matrix(({"tier": "host"}, [[7200, "1"], [7215, "NaN"], [7245, "+Inf"], [7260, "2.5"]])))
        (series,) = ask({"targets": [{"expr": "a[$__rate_interval]", "legendFormat": "{{tier}} {{nothing}}"}]}, prometheus, {},
                        TimeRange(7207, 7260, 15), 780)
        self.assertEqual(series, Series("host", [(7200, 1), (7215, None), (7230, None), (7245, None), (7260, 2.5)]))
        self.assertEqual(prometheus.asked, [("/api/v1/query_range", {"query": "a[60s]", "start": 7200, "end": 7260, "step": 15})])

    def test_an_instant_query_is_asked_for_the_end(self):
        prometheus = FakePrometheus({"resultType": "vector", "result": [{"metric": {}, "value": [10800, "3"]}]})
        (series,) = ask({"targets": [{"expr": "a", "legendFormat": "x", "instant": True}]}, prometheus, {}, HOUR, 780)
        self.assertEqual(series, Series("x", [(10800, 3)]))
        self.assertEqual(prometheus.asked, [("/api/v1/query", {"query": "a", "time": 10800})])

    def test_without_a_format_the_legend_has_the_labels(self):
        self.assertEqual(legend({"expr": "a"}, {"__name__": "a", "b": "1", "a": "2"}), 'a="2", b="1"')


class UnitsTest(unittest.TestCase):
    def test_units_are_those_of_grafana(self):
        for value, unit, text in ((1234, "short", "1.23 K"), (2.5e6, "short", "2.5 Mil"), (0.256, "percentunit", "25.6%"), (0.0021, "s", "2.1 ms"),
                                  (90, "s", "1.5 min"), (0, "s", "0 s"), (1500, "Bps", "1.5 kB/s"), (3 * 2**20, "bytes", "3 MiB"),
                                  (0.5, "reqps", "0.5 req/s"), (12, "suffix: pages/s", "12 pages/s"), (999, "short", "999")):
            self.assertEqual(with_unit(value, unit), text)


class TicksTest(unittest.TestCase):
    def test_they_are_round_and_stay_in_their_axis(self):
        self.assertEqual(ticks(0, 9.3, "short"), [0, 2, 4, 6, 8])
        self.assertEqual(ticks(0, 5 * 2**20, "bytes"), [i * 2**20 for i in range(6)])

    def test_counts_have_whole_ones(self):
        self.assertEqual(ticks(0, 1, "short", 0), [0, 1])
        self.assertEqual(ticks(0, 12, "short", 0), [0, 5, 10])
        self.assertEqual([round(tick, 3) for tick in ticks(1, 1.2, "none", 1)], [1, 1.1, 1.2])


class LayoutTest(unittest.TestCase):
    def test_panels_that_overlap_or_leave_the_grid_are_named(self):
        self.assertEqual(layout_faults([panel(1, 0, 0, 12, 8), panel(2, 12, 0, 12, 8), panel(3, 0, 8, 24, 1)]), [])
        self.assertEqual(layout_faults([panel(1, 0, 0, 12, 8), panel(2, 11, 7, 12, 8)]), ["panel 2: overlaps panel 1"])
        self.assertEqual(layout_faults([panel(1, 13, 0, 12, 8)]), ["panel 1: beside the grid of 24 columns"])

    def test_the_dashboard_has_no_such_fault_and_every_number_once(self):
        with open(os.path.join(MONITORING, "dashboard.json"), encoding="utf-8") as file:
            panels = json.load(file)["panels"]
        self.assertEqual(layout_faults(panels), [])
        self.assertEqual(len({one["id"] for one in panels}), len(panels))

    def test_a_panel_is_where_its_grid_position_says(self):
        # Cells are 30 pixels high and 8 apart. 24 columns share the width inside the frame of 8 pixels. A title of 44 pixels is above.
        panels = [panel(1, 0, 0, 12, 4), panel(2, 12, 4, 6, 8)]
        _, rectangles, _ = pictured(panels, {1: [], 2: []})
        self.assertEqual(rectangles[1:], [(8, 44, 788, 144), (804, 196, 390, 296)])
        self.assertEqual(panel_width(panels[1], 1600), 390)

    def test_a_panel_says_that_it_has_no_data_or_an_error(self):
        texts, _, _ = pictured([panel(1, 0, 0, 12, 8), panel(2, 12, 0, 12, 8)], {1: [Series("a", [(7200, None)])], 2: "parse error"})
        self.assertIn("No data", texts)
        self.assertIn("parse error", texts)

    def test_what_is_not_drawn_is_an_error(self):
        found = {1: [], 2: [Series("a", [(7200, 1.0)])], 3: []}
        pictured([panel(1, 0, 0, 8, 8, "piechart"), panel(2, 8, 0, 8, 8, fieldConfig={"defaults": {"unit": "furlongs"}}),
                  panel(3, 16, 0, 8, 8, transformations=[{"id": "reduce"}])], found)
        self.assertEqual(found, {1: "not drawn: panels of type piechart", 2: "not drawn: unit furlongs",
                                 3: "not drawn: overrides and transformations"})


class DrawingTest(unittest.TestCase):
    def test_a_line_runs_from_the_floor_to_the_ceiling_and_is_torn_by_gaps(self):
        points = [(7200, 0.0), (9000, 10.0), (9600, None), (10200, 5.0), (10800, 5.0)]
        texts, _, paths = pictured([panel(1, 0, 0, 24, 8)], {1: [Series("a", points)]})
        lines = [path for path in paths if "l" in path]
        self.assertEqual(len(lines), 2)
        # From the lower left corner the line goes half the width to the right and the whole height up; y grows downwards.
        self.assertRegex(lines[0], r"^M[\d.]+ [\d.]+l[\d.]+-[\d.]+$")
        self.assertRegex(lines[1], r"^M[\d.]+ [\d.]+l[\d.]+ 0$")
        whole, half = (float(line.split("l")[0].split(" ")[1]) for line in lines)
        height = float(lines[0].rsplit("-", 1)[1])
        self.assertAlmostEqual(whole - half, height / 2, delta=0.2)
        self.assertIn("a", texts)
        self.assertIn("10", texts)

    def test_a_level_stretch_is_two_points_and_its_ends_stay(self):
        values = [1.0, 1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 4.0]
        _, _, paths = pictured([panel(1, 0, 0, 24, 8)], {1: [Series("a", [(7200 + 450 * i, value) for i, value in enumerate(values)])]})
        (line,) = [path for path in paths if "l" in path]
        # Level, up by one step, level.
        self.assertRegex(line, r"^M[\d.]+ [\d.]+l[\d.]+ 0 [\d.]+-[\d.]+ [\d.]+ 0$")

    def test_stacked_series_stand_on_one_another(self):
        stacked = panel(1, 0, 0, 24, 8)
        stacked["fieldConfig"]["defaults"].update(max=10, custom={"stacking": {"mode": "normal"}})
        _, _, paths = pictured([stacked], {1: [Series(name, [(7200, 4.0), (10800, 4.0)]) for name in "ab"]})
        first, second = (float(path.split("l")[0].split(" ")[1]) for path in paths if "l" in path)
        stacked["fieldConfig"]["defaults"]["custom"] = {}
        _, _, paths = pictured([stacked], {1: [Series("a", [(7200, 0.0), (10800, 0.0)]), Series("b", [(7200, 8.0), (10800, 8.0)])]})
        floor, eight = (float(path.split("l")[0].split(" ")[1]) for path in paths if "l" in path)
        self.assertAlmostEqual(second, eight, delta=0.2)
        self.assertAlmostEqual(first, (floor + eight) / 2, delta=0.2)

    def test_a_stat_has_its_last_number_in_the_colour_of_its_threshold(self):
        stat = panel(1, 0, 0, 4, 4, "stat", options={"colorMode": "value"})
        stat["fieldConfig"]["defaults"]["thresholds"] = {"steps": [{"color": "green", "value": None}, {"color": "red", "value": 5}]}
        for last, colour in ((4.0, "#56A64B"), (5.0, "#E02F44")):
            text = draw({"title": "T", "panels": [stat]}, {1: [Series("a", [(7200, 9.0), (9000, last), (10800, None)])]}, HOUR, 1600, "")
            self.assertRegex(text, f'fill="{colour}"[^>]*>{last:g}</text>')


if __name__ == "__main__":
    unittest.main()
