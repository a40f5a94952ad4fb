#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/monitoring in a real Prometheus that scrapes a coordinator with a group of two ranks. After some requests every query of the dashboard
is answered with a number, no panel of its picture stays empty, and every alert can be evaluated. Exit status 77 without prometheus.

Debian has no Grafana, so deploy/monitoring/render asks and draws in its place."""
import contextlib
import http.client
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.parse
import xml.etree.ElementTree

from service import PATIENCE_S, SOURCE_DIR, Service, ServiceTestCase, free_ports, make_prompt, wait_until

MONITORING = os.path.join(SOURCE_DIR, "deploy", "monitoring")
sys.path.insert(0, MONITORING)

from dashboard_queries import fill_in  # noqa: E402

SHORT = make_prompt(512, seed=1)


def panels():
    with open(os.path.join(MONITORING, "dashboard.json"), encoding="utf-8") as file:
        return [panel for panel in json.load(file)["panels"] if panel["type"] != "row"]


def queries():
    """(panel, query) of the dashboard, for all groups and the last two minutes."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], fill_in(target["expr"], {"__rate_interval": "2m", "group": ".*"})


class Prometheus:
    """Debian's Prometheus with the rules of deploy/monitoring and one target."""

    def __init__(self, target):
        self.directory = tempfile.TemporaryDirectory()
        self.port = free_ports(1)
        config = os.path.join(self.directory.name, "prometheus.yml")
        # As deploy/monitoring/prometheus.yml, but with shorter intervals.
        with open(os.path.join(MONITORING, "prometheus.yml")) as file:
            text = file.read()
        text, scrapes = re.subn(r"scrape_interval: \w+", "scrape_interval: 500ms\n  evaluation_interval: 500ms", text)
        text, rules = re.subn(r"- alerts\.yml", f"- {os.path.join(MONITORING, 'alerts.yml')}", text)
        text, targets = re.subn(r'targets: \[".*"\]', f'targets: ["{target}"]', text)
        assert (scrapes, rules, targets) == (1, 1, 1), text
        with open(config, "w") as file:
            file.write(text)
        self.log = open(os.path.join(self.directory.name, "log"), "w+")
        self.process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--web.listen-address=127.0.0.1:{self.port}",
                                         f"--storage.tsdb.path={self.directory.name}/data"],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        wait_until("prometheus", self._answers, PATIENCE_S)

    def _answers(self):
        assert self.process.poll() is None, self._log()
        with contextlib.suppress(OSError), contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request("GET", "/-/ready")
            return connection.getresponse().status == 200

    def _log(self):
        self.log.seek(0)
        return self.log.read()

    def get(self, path, **query):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            connection.request("GET", path + ("?" + urllib.parse.urlencode(query) if query else ""))
            answer = json.loads(connection.getresponse().read())
        assert answer["status"] == "success", (query, answer)
        return answer["data"]

    def numbers(self, query):
        """{labels as a set of pairs: value}, without values that are not numbers."""
        samples = {frozenset(sample["metric"].items()): float(sample["value"][1]) for sample in self.get("/api/v1/query", query=query)["result"]}
        return {labels: value for labels, value in samples.items() if math.isfinite(value)}

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.log.close()
        self.directory.cleanup()


class DashboardTest(ServiceTestCase):
    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)
        self.service.coordinator_options = "--admin-port", "0"
        self.service.restart_coordinator()
        self.service.start_group("--group-name", "g", tp=1, cp=2)
        self.prometheus = Prometheus(f"127.0.0.1:{self.service.probe_port}")
        self.addCleanup(self.prometheus.close)
        self.served = 0

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def serve(self):
        """A request's whole life: prefill (with a cached prefix from the second request on), pull, release."""
        status, _, response = self.service.prefill(SHORT, cache="both")
        self.assertEqual(status, 200, response)
        code, decoded = self.service.decode(response)
        self.assertEqual(code, 0, decoded)
        manifest = response["manifest"]
        status, _, body = self.service.request("DELETE", f"/v1/prefill/{manifest['request_id']}")
        self.assertIn(status, (200, 202, 204), body)
        self.served += 1

    def test_no_panel_is_empty_and_the_figures_are_those_of_the_requests(self):
        empty = set(queries())
        for _ in range(20):
            self.serve()
            scraped = 'millrace_prefill_requests_total{outcome="done"}'
            wait_until("a scrape", lambda: sum(self.prometheus.numbers(scraped).values()) == self.served, PATIENCE_S)
            empty = {(panel, query) for panel, query in queries() if not self.prometheus.numbers(query)}
            if not empty:
                break
        self.assertEqual(empty, set())
        one = self.prometheus.numbers
        self.assertEqual(one("sum(millrace_connected_groups)"), {frozenset(): 1})
        self.assertEqual(one("sum(millrace_prompt_tokens_sum)"), {frozenset(): self.served * len(SHORT["prompt_token_ids"])})
        self.assertEqual({dict(labels).get("group") for labels in one("millrace_attention_imbalance_ratio")}, {"g"})

    def render(self, *options):
        """The exit status, output and errors of the program for the last minute."""
        done = subprocess.run([os.path.join(MONITORING, "render"), "--prometheus", f"http://127.0.0.1:{self.prometheus.port}", "--from", "1m",
                               "--scrape-interval", "0.5", *options], capture_output=True, timeout=PATIENCE_S, text=True)
        return done.returncode, done.stdout, done.stderr

    def test_the_picture_has_every_panel_with_data(self):
        for _ in range(20):
            self.serve()
            self.assertEqual(self.service.prefill(SHORT, model="nothing")[0], 404)
            scraped = 'millrace_prefill_requests_total{outcome="done"}'
            wait_until("a scrape", lambda: sum(self.prometheus.numbers(scraped).values()) == self.served, PATIENCE_S)
            status, picture, complaints = self.render()
            self.assertEqual(status, 0, complaints)
            if not complaints:
                break
        self.assertEqual(complaints, "")
        texts = {text.text for text in xml.etree.ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")}
        self.assertLessEqual({panel["title"] for panel in panels()} | {"none fires", "done, ok", "refused, not_found", "g host"}, texts)
        self.assertNotIn("No data", texts)
        # For a group that does not exist its panels are empty, and the others have their values.
        status, _, complaints = self.render("--variable", "group=nobody")
        self.assertEqual(status, 0, complaints)
        self.assertIn("render: Pages read for decode nodes, by tier: no data\n", complaints)
        self.assertNotIn("HTTP responses", complaints)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"title": "T", "panels": [dict(panels()[0], targets=[{"expr": "sum(", "legendFormat": ""}])]}, file)
            file.flush()
            status, _, complaints = self.render("--dashboard", file.name)
        self.assertEqual(status, 1)
        self.assertIn("parse error", complaints)

    def test_every_alert_is_evaluated_and_rests(self):
        self.serve()

        def evaluated():
            rules = [rule for group in self.prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
            return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None
        rules = wait_until("the rules", evaluated, PATIENCE_S)
        self.assertEqual({rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"}, {})
        self.assertEqual([rule["name"] for rule in rules if rule["state"] == "firing"], [])
        # Once a group is gone, the alert that reports this becomes pending.
        os.killpg(self.service.groups[0].pid, signal.SIGKILL)
        for pid in self.service.ranks().values():
            os.kill(pid, signal.SIGKILL)
        wait_until("MillraceNoGroup", lambda: self.prometheus.numbers('ALERTS{alertname="MillraceNoGroup"}'), PATIENCE_S)


if __name__ == "__main__":
    if not shutil.which("prometheus"):
        print("skipped: no prometheus (deploy/install-packages packages-test)")
        sys.exit(77)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
