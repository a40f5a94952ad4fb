# SPDX-License-Identifier: Apache-2.0
"""Complaints logs why prompts are left to the decode engine: at once, and while the same reason recurs, once a minute."""
import time

_INTERVAL_S = 60.0


class Complaints:
    """Of one thread. `logger`: of the standard library's kind."""

    def __init__(self, logger):
        self._logger = logger
        self._said = {}

    def say(self, code, text):
        """Logs the text, unless one with this code was logged within a minute; the next one then says how many were not."""
        now = time.monotonic()
        last, unsaid = self._said.get(code, (None, 0))
        if last is not None and now - last < _INTERVAL_S:
            self._said[code] = last, unsaid + 1
            return
        more = f" ({unsaid} more since the last such line)" if unsaid else ""
        self._logger.warning("%s%s", text, more)
        self._said[code] = now, 0
