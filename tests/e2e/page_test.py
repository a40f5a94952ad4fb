#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of the admin port in a headless Chromium, and `millrace-client top`, beside a group of four ranks. Skipped without Chromium."""
import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import unittest

import browser
from service import BIN_DIR, PATIENCE_S, InBackground, Service, ServiceTestCase, make_prompt, tokens_for, wait_until

SHORT = make_prompt(1024, seed=1)
LONG = make_prompt(tokens_for(12288), seed=2)
LAYERS, HEADS = 5, 8  # of the fixture
# Names are the operator's, but a group is believed whatever it calls itself.
GROUP = "<i id=injected>one</i>"


class PageTestCase(ServiceTestCase):
    def setUp(self):
        self.browser = browser.Browser(PATIENCE_S)
        self.addCleanup(self.browser.close)

    def wait_for_text(self, text, selector):
        wait_until(f"{text!r} in {selector}", lambda: text in self.browser.text(selector), PATIENCE_S)

    def count(self, selector):
        return self.browser.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    def fits(self):
        return self.browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


class ServicePageTest(PageTestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service(admin_port=True)
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group("--group-name", GROUP, "--head-plan", "adaptive", tp=2, cp=2)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def top(self):
        done = subprocess.run([os.path.join(BIN_DIR, "millrace-client"), "--server", f"127.0.0.1:{self.service.probe_port}", "top", "--once"],
                              capture_output=True, timeout=PATIENCE_S, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_shows_the_group_what_runs_and_waits_and_what_heads_attended_to(self):
        status, _, response = self.service.prefill(SHORT, request_id="seen", recall_by_head=True)
        self.assertEqual(status, 200, response)
        self.browser.resize(360)
        self.browser.open(f"http://127.0.0.1:{self.service.probe_port}/")
        self.wait_for_text("seen", "#ended")
        groups = self.browser.text("#groups")
        self.assertIn(GROUP, groups)
        self.assertIn("4 ranks, TP 2 × CP 2", groups)
        self.assertEqual(self.count(".ranks i"), 4)
        # The leased cache, once a heartbeat has told of it.
        wait_until("the fill of the host pool", lambda: re.search(r"host\n(?!0 B).+ of \d\.\d GiB", self.browser.text("#groups")), PATIENCE_S)
        self.assertEqual(self.count("#injected"), 0)
        # Two maps of the heads' recall have a cell for each.
        self.wait_for_text("seen", "#of")
        self.assertEqual(self.count(".missed rect[fill-opacity]"), 2 * LAYERS * HEADS)
        self.assertEqual(self.count("#maps figure:not(.missed) rect[fill-opacity]"), LAYERS * HEADS)
        _, _, layers = self.service.get("/overview/seen")
        for of_heads, of_layer in zip(layers["density_by_head"], layers["density"], strict=True):
            self.assertAlmostEqual(sum(of_heads) / HEADS, of_layer, places=3)
            self.assertEqual(len(of_heads), HEADS)
        least = min(share for layer in response["recall_by_head"]["mean"] for share in layer)
        self.assertIn(f"{least:.3f}" if least < 0.9995 else ": 1", self.browser.text(".missed output"))
        self.assertTrue(self.fits())

        posts = [InBackground(lambda name=name: self.service.prefill(LONG, request_id=name)) for name in ("first", "second")]
        # Without another word from this test the page shows that they have come and gone.
        wait_until("a layer", lambda: re.search("layer [1-5] of 5", self.browser.text("#running")), PATIENCE_S)
        self.assertIn("left", self.browser.text("#running"))
        self.assertEqual(self.count("#running li"), 1)
        self.assertEqual(self.count("#queued tr"), 1)
        self.assertTrue(self.fits())
        ranks, running, waiting = self.top(), *self.browser.evaluate("[data.running[0].request_id, data.queued[0].request_id]")
        self.assertEqual({running, waiting}, {"first", "second"})
        self.assertIn("1 group, 4 ranks, 1 running, 1 queued", ranks)
        self.assertRegex(ranks, rf"(?m)^{running} .* \[#*\.*\] \d/5 ")
        for post in posts:
            self.assertEqual(post.wait(PATIENCE_S)[0], 200)
        wait_until("the end of both", lambda: self.count("#ended tr") == 3, PATIENCE_S)
        self.assertEqual(self.count("#running li"), 0)
        # The latest with figures by head stays in view until another is chosen.
        self.assertEqual(self.browser.text("#of"), "seen")
        self.browser.evaluate("document.querySelector('#ended a[href=\"#first\"]').click()")
        self.wait_for_text("first", "#of")
        self.assertEqual(self.count(".missed"), 0)
        self.assertEqual(self.count("#maps rect[fill-opacity]"), LAYERS)
        self.assertEqual(self.browser.log, [])

    def test_an_id_with_markup_is_refused_before_it_could_be_shown(self):
        status, _, body = self.service.prefill(SHORT, request_id="<b>x</b>")
        self.assertEqual((status, body["error"]["param"]), (400, "request_id"))


class OldNewsTest(PageTestCase):
    def test_says_that_what_it_shows_is_old_and_recovers(self):
        service = Service(admin_port=True)
        self.addCleanup(service.close)
        self.browser.open(f"http://127.0.0.1:{service.probe_port}/")
        self.wait_for_text("live", "#state")
        self.wait_for_text("No group is connected.", "main")
        service.coordinator.send_signal(signal.SIGSTOP)
        self.wait_for_text("nothing new since", "#state")
        self.assertTrue(self.browser.evaluate("document.body.classList.contains('stale')"))
        service.coordinator.send_signal(signal.SIGCONT)
        self.wait_for_text("live", "#state")


class HostileServer(http.server.ThreadingHTTPServer):
    """Serves the coordinator's page and policy with text that no coordinator sends."""
    MARKUP = "<img src=x id=injected onerror=\"document.title='run'\">"

    def __init__(self, page, policy):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.page, self.policy = page, policy

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            markup = HostileServer.MARKUP
            request = {"request_id": markup, "owner": markup, "model": markup, "group": markup, "num_tokens": 1, "num_layers": 1, "layers_done": 0,
                       "error": markup, "status": "done", "by_head": True}
            if self.path == "/":
                kind, body = "text/html; charset=utf-8", self.server.page
            elif self.path == "/overview":
                kind, body = "application/json", json.dumps({
                    "version": markup, "num_groups": 1, "num_running": 1, "num_queued": 1,
                    "groups": [{"group": markup, "model": markup, "state": markup, "device": markup, "ranks": 1, "tp": 1, "cp": 1,
                                "tiers": [{"tier": markup, "used_bytes": 1, "capacity_bytes": 1, "prefix_bytes": 1}]}],
                    "running": [request], "queued": [request], "ended": [request]})
            else:
                kind, body = "application/json", json.dumps({"request_id": markup, "num_tokens": 1, "num_layers": 1, "density": [1],
                                                             "recall_by_head": {"mean": [[1]], "least": [[0.5]]}, "density_by_head": [[1]]})
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Security-Policy", self.server.policy)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass


class MarkupTest(PageTestCase):
    def test_text_from_strangers_is_shown_as_text(self):
        service = Service(admin_port=True)
        self.addCleanup(service.close)
        with contextlib.closing(service.connection(PATIENCE_S, service.probe_port)) as connection:
            connection.request("GET", "/")
            response = connection.getresponse()
            page, policy = response.read().decode(), response.headers["Content-Security-Policy"]
        server = HostileServer(page, policy)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.browser.open(f"http://127.0.0.1:{server.server_port}/")
        for selector in "#version", "#groups", "#running", "#queued", "#ended", "#of":
            self.wait_for_text(HostileServer.MARKUP, selector)
        self.assertEqual(self.count("#injected, img"), 0)
        self.assertTrue(self.browser.evaluate("document.title").startswith("Millrace: "))
        self.assertEqual(self.browser.log, [])
        # The policy is a second wall: even markup that got in would not run.
        self.browser.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\"><script>document.title=1</script>')")
        wait_until("the browser's refusal", lambda: self.browser.evaluate("1") and any("Content Security Policy" in line for line in self.browser.log),
                   PATIENCE_S)
        self.assertNotEqual(self.browser.evaluate("document.title"), "1")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if browser.COMMAND is None:
        print("skipped: no chromium")
        sys.exit(77)
    unittest.main(verbosity=2)
