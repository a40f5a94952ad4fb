# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over a pipe by the DevTools protocol. Standard library only."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

COMMAND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. Messages are JSON that ends in a zero byte; the browser reads them from its descriptor 3 and writes to 4."""

    def __init__(self, timeout_s=120):
        self._timeout_s = timeout_s
        self._profile = tempfile.TemporaryDirectory(prefix="millrace-browser-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def place():
            # In two steps, because one of the pipe's ends may be 3 or 4 itself.
            first, second = os.dup(to_read), os.dup(to_write)
            os.dup2(first, 3)
            os.dup2(second, 4)
        # Root has no sandbox in containers; what is shown comes from this test.
        self._process = subprocess.Popen(
            [COMMAND, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
             f"--user-data-dir={self._profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=place, close_fds=False,
            start_new_session=True)
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._last_id = 0
        self._session = None
        self.log = []  # what the page's console and its exceptions said
        targets = self._call("Target.getTargets")["targetInfos"]
        target = next(info["targetId"] for info in targets if info["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log":
            self._call(domain + ".enable")

    def _receive(self):
        deadline = time.monotonic() + self._timeout_s
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"the browser said nothing for {self._timeout_s} s")
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser has ended"
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _call(self, method, **parameters):
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown":
                details = answer["params"]["exceptionDetails"]
                self.log.append(details.get("exception", {}).get("description", details["text"]))
            elif answer.get("method") == "Log.entryAdded":
                entry = answer["params"]["entry"]
                self.log.append(f"{entry['text']} ({entry.get('url', '')})")

    def open(self, url):
        self._call("Page.navigate", url=url)

    def evaluate(self, expression):
        """The value of JavaScript, which may be a promise."""
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def text(self, selector="body"):
        """The visible text of all elements that match, with plain spaces."""
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText).join('\\n')").replace("\xa0", " ")

    def resize(self, width, height=800, dark=False):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def screenshot(self, path):
        """The whole page, not only what the window shows."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True,
                          clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()
