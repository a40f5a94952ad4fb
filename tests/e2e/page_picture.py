#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes pictures of the page of the admin port while a group of four CPU ranks computes a prompt and two wait. Needs Chromium.

    MILLRACE_SOURCE_DIR=. MILLRACE_BIN_DIR=build/release/bin tests/e2e/page_picture.py FOLDER

FOLDER gets page.png (docs/images has it), page-dark.png, and page-phone.png, 360 pixels wide.
"""
import os
import sys

from browser import Browser
from service import PATIENCE_S, InBackground, Service, make_prompt, wait_until


def take(service, folder):
    service.start_group("--group-name", "group-0", "--head-plan", "adaptive", "--device-pool", "32MiB", "--host-pool", "64MiB", tp=2, cp=2)
    for number, tokens in enumerate((1024, 4096, 8192)):
        service.prefill(make_prompt(tokens, seed=number), request_id=f"report-{tokens}", recall_by_head=True, cache="both", lease_ms=600000)
    service.prefill(make_prompt(8192, seed=3), request_id="late", deadline_ms=1)
    browser = Browser(PATIENCE_S)
    posts = []
    try:
        browser.resize(1280)
        browser.open(f"http://127.0.0.1:{service.probe_port}/")
        for number, (name, tokens) in enumerate((("contract-2031", 24576), ("chat-71b0", 12288), ("chat-8c55", 16384))):
            posts.append(InBackground(lambda name=name, tokens=tokens, number=number: service.prefill(
                make_prompt(tokens, seed=10 + number), request_id=name, deadline_ms=PATIENCE_S * 1000)))
            wait_until(name, lambda name=name: service.get(f"/v1/prefill/{name}")[0] == 200, PATIENCE_S)
        wait_until("the second layer", lambda: "layer 2 of 5" in browser.text("#running"), PATIENCE_S)
        for name, width, dark in ("page", 1280, False), ("page-dark", 1280, True), ("page-phone", 360, False):
            browser.resize(width, dark=dark)
            browser.screenshot(os.path.join(folder, name + ".png"))
        assert not browser.log, browser.log
    finally:
        browser.close()


def main():
    service = Service(admin_port=True)
    try:
        take(service, sys.argv[1])
    finally:
        service.close()


if __name__ == "__main__":
    main()
