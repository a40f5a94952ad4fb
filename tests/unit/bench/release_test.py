#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/release: `run` on a program that stands for millrace-bench, `render` on results made here and on the tree's."""

import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[3]
RELEASE = ROOT / "bench" / "release"
sys.path.insert(0, str(RELEASE))

import cases  # noqa: E402
import plot  # noqa: E402


def load(name):
    """Returns a program of bench/release as a module."""
    module = types.ModuleType(name)
    module.__file__ = str(RELEASE / name)
    exec(compile((RELEASE / name).read_text(encoding="utf-8"), name, "exec"), module.__dict__)
    return module


# Answers like millrace-bench prefill: every prompt takes a second for each thousand tokens. Fails at 32,768 tokens, and
# writes down its calls.
BENCH = """#!/usr/bin/env python3
import json, os, sys
arguments = sys.argv[2:]
def values(name):
    rest = arguments[arguments.index(name) + 1:]
    return rest[:next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))]
with open(os.path.join(os.path.dirname(sys.argv[0]), "calls"), "a") as file:
    file.write(" ".join(values("--tokens")) + "\\n")
if "32768" in values("--tokens"):
    print("out of memory")
    sys.exit(2)
rows = [{"tokens": int(tokens), "plan": plan, "total_s": int(tokens) / 1000, "totals_s": [int(tokens) / 1000],
         "density": 0.123456789, "recall": 1.0, "first_token": 7, "repeatable": True, "floor_s": 0.5,
         "times_floor": 2.0, "phases_s": {"mlp": 0.75, "attention": 0.25}, "predicted": {"total_s": 0.9}}
        for tokens in values("--tokens") for plan in values("--head-plan")]
with open(values("--json")[0], "w") as file:
    json.dump({"device": "cpu", "commit": values("--commit")[0], "roof_tflops": 1.5, "rows": rows}, file)
"""


def row(tokens, plan, seconds, cp=1, quantization="none"):
    return {
        "bench": "prefill",
        "model": cases.MODEL,
        "tp": 1,
        "cp": cp,
        "quantization": quantization,
        "tokens": tokens,
        "plan": plan,
        "seconds": seconds,
        "seconds_of_runs": [seconds],
        "warm_ups": 1,
        "density": 0.5,
        "recall": 1.0,
        "first_token": 1,
        "repeatable": True,
        "floor_s": seconds / 2,
        "times_floor": 2.0,
        "roof_tflops": 800.0,
        "predicted_s": seconds,
        "phases_s": {"mlp": 0.5 * seconds, "estimate": 0.2 * seconds, "attention": 0.3 * seconds},
    }


def machine(gpus, *rows, **more):
    return {
        "gpu": "NVIDIA H100 80GB HBM3",
        "gpus": gpus,
        "commit": "0123abcd",
        "machine": "",
        "date": "2026-01-01",
        "missing": {},
        "rows": list(rows),
        **more,
    }


class Run(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        bench = self.directory / "millrace-bench"
        bench.write_text(BENCH, encoding="utf-8")
        bench.chmod(0o755)

    def run_with(self, commit):
        command = [
            sys.executable,
            str(RELEASE / "run"),
            "--bin",
            str(self.directory),
            "--gpus",
            "0",
            "--output",
            str(self.directory),
            "--commit",
            commit,
        ]
        status = subprocess.run(command, stdout=subprocess.PIPE, check=False).returncode
        document = json.loads((self.directory / f"cpu{os.cpu_count()}.json").read_text(encoding="utf-8"))
        return status, document

    def num_calls(self):
        return len((self.directory / "calls").read_text(encoding="utf-8").splitlines())

    def test_writes_what_was_measured_and_names_what_failed(self):
        status, document = self.run_with("abc")
        self.assertEqual(status, 1)
        self.assertEqual(
            [(r["tokens"], r["plan"], r["seconds"], r["density"]) for r in document["rows"]],
            [(tokens, plan, tokens / 1000, 0.1235) for tokens in (4096, 8192) for plan in ("dense", "adaptive")]
            + [(16384, plan, 16.38, 0.1235) for plan in ("dense", "adaptive")],
        )
        self.assertEqual(list(document["missing"].values()), ["exit status 2: out of memory"])
        self.assertEqual(document["commit"], "abc")
        self.assertNotIn(str(self.directory), json.dumps(document))

    def test_measures_again_only_what_is_missing(self):
        self.run_with("abc")
        before = self.num_calls()
        _, document = self.run_with("abc")
        self.assertEqual(self.num_calls() - before, 1)
        self.assertEqual(len(document["rows"]), 6)

    def test_begins_anew_for_other_programs(self):
        self.run_with("abc")
        before = self.num_calls()
        _, document = self.run_with("def")
        self.assertEqual(self.num_calls() - before, 2)
        self.assertEqual((document["commit"], len(document["rows"])), ("def", 6))

    def test_every_case_is_told_from_all_others_of_its_machine(self):
        for gpus in (1, 2, 4, 8):
            keys = [key for case in cases.gpu_cases(gpus) for key in case.keys()]
            self.assertEqual(len(keys), len(set(keys)))
            self.assertTrue(all(case.ranks <= gpus for case in cases.gpu_cases(gpus)))

    def test_names_a_machine_by_its_gpus(self):
        run = load("run")
        self.assertEqual(run.machine_name("NVIDIA H100 80GB HBM3", 4), "h100x4")
        self.assertEqual(run.machine_name("NVIDIA H200", 1), "h200")

    def test_reads_what_a_service_answered_behind_a_prefix(self):
        run = load("run")
        lines = [
            {"what": "prefix", "wall": 9.0, "cached": 0},
            *({"what": "2,048 behind", "wall": s, "cached": 131008} for s in (0.3, 0.2, 0.25)),
            {"what": "2,048 whole", "wall": 3.4, "cached": 0},
        ]
        text = (
            "ready after 1 s\n" + "\n".join(map(json.dumps, lines)) + "\nfirst tokens {2048: {5}}, whole 5: the same\n"
        )
        found = run.prefix_row(cases.Prefix(), text)
        self.assertEqual(
            (found["seconds"], found["whole_s"], found["cached"], found["same_first_token"]), (0.25, 3.4, 131008, True)
        )
        with self.assertRaises(run.Failed):
            run.prefix_row(cases.Prefix(), "ready after 1 s\n")


class Render(unittest.TestCase):
    def setUp(self):
        self.render = load("render")

    def test_writes_seconds_with_three_digits(self):
        self.assertEqual(
            [self.render.seconds_text(s) for s in (0.1987, 3.4413, 17.672, 128.5, 0.9)],
            ["0.199", "3.44", "17.7", "128", "0.900"],
        )

    def test_a_machine_has_a_row_for_every_prefill_and_its_efficiency(self):
        lines = self.render.machine_section(
            machine(2, row(131072, "adaptive", 4.0), row(131072, "adaptive", 2.5, cp=2), missing={"a": "no time"})
        )
        self.assertIn("## Two H100s of one host", lines)
        self.assertIn("| 131,072 | `adaptive` | 1 | | 4.00 | 1 | 0.5 | 2.00 |", lines)
        self.assertIn("| 131,072 | `adaptive` | 2, CP 2 | 0.80 | 2.50 | 1 | 0.5 | 2.00 |", lines)
        self.assertIn("Not measured: a (no time).", lines)

    def test_the_readme_keeps_all_but_its_block(self):
        text = "before\n<!-- numbers: x -->\nold\n<!-- end of numbers -->\nafter\n"
        block = self.render.readme_block(
            machine(1, row(8192, "dense", 0.25), row(131072, "adaptive", 2.0, quantization="fp8"))
        )
        changed = self.render.readme_with(text, block)
        self.assertTrue(
            changed.startswith("before\n<!-- numbers: x -->\n") and changed.endswith("<!-- end of numbers -->\nafter\n")
        )
        self.assertIn("| 8,192 | 0.250 | | |", changed)
        self.assertIn("| 131,072, linear layers in 8-bit floats | | | 2.00 |", changed)
        self.assertEqual(self.render.readme_with(changed, block), changed)

    def test_what_the_tree_shows_is_what_its_results_say(self):
        done = subprocess.run(
            [sys.executable, str(RELEASE / "render"), "--check"], stdout=subprocess.PIPE, text=True, check=False
        )
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_lines_of_the_page_are_short(self):
        page = self.render.numbers_page(
            [
                machine(1, row(131072, "adaptive", 4.0), row(131072, "minference", 5.0), row(8192, "adaptive", 0.2)),
                machine(2, row(131072, "adaptive", 4.0), row(131072, "adaptive", 2.5, cp=2)),
            ]
        )
        self.assertLessEqual(max(map(len, page.splitlines())), 130)
        self.assertIn("keep 80 % of their speed", page.replace("\n  ", " "))


class Chart(unittest.TestCase):
    def test_puts_points_by_their_logarithms_and_names_lines(self):
        picture = plot.chart(
            "a < b",
            "x",
            "y",
            [plot.Line("one", [(1, 1), (10, 10), (100, 100)]), plot.Line("", [(1, 2), (100, 2)], marks=False)],
            [(1, "1"), (100, "100")],
        )
        tree = xml.etree.ElementTree.fromstring(picture)
        marks = [(float(c.get("cx")), float(c.get("cy"))) for c in tree.iter("{http://www.w3.org/2000/svg}circle")]
        self.assertEqual(len(marks), 3)
        self.assertAlmostEqual(marks[1][0] - marks[0][0], marks[2][0] - marks[1][0], delta=0.2)
        self.assertAlmostEqual(marks[0][1] - marks[1][1], marks[1][1] - marks[2][1], delta=0.2)
        self.assertIn("a &lt; b", picture)
        self.assertEqual(len(re.findall(">one<", picture)), 1)

    def test_labels_keep_apart(self):
        places = plot.spread([10, 12, 50, 11], 15)
        self.assertEqual(places, [10, 40, 55, 25])
        self.assertTrue(all(math.isfinite(place) for place in places))


if __name__ == "__main__":
    unittest.main()
