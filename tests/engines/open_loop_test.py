#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/engines/open_loop.py against a server that stands for vLLM's. Needs aiohttp, and no engine."""
import asyncio
import json
import os
import sys
import unittest

from aiohttp import web

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench", "engines"))

from arrivals import Arrival  # noqa: E402
from open_loop import LATE, OpenLoop  # noqa: E402

ANSWER_TOKENS = 4
# Longer than any run here, and cut short by what a test waits for.
PATIENCE_S = 60


class StandIn:
    """Streams answers. `script(body)` yields: numbers of tokens for an event, "wait" for release(), or a line to send as it is."""

    def __init__(self, script):
        self._script, self.asked, self.aborted = script, [], asyncio.Event()
        self._released = asyncio.Event()

    def release(self):
        self._released.set()

    async def __aenter__(self):
        application = web.Application(client_max_size=1 << 26)
        application.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(application, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _complete(self, request):
        body = await request.json()
        self.asked.append(body["prompt"])
        if body["prompt"] == "refuse":
            return web.Response(status=429, text="full")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        count = 0
        try:
            for step in self._script(body["prompt"]):
                if step == "wait":
                    await self._released.wait()
                elif isinstance(step, bytes):
                    await response.write(step)
                else:
                    ids = list(range(count, count + step))
                    count += step
                    event = {"choices": [{"text": "", "token_ids": ids}], "usage": {"completion_tokens": count}}
                    if count == step:
                        event["choices"][0]["prompt_token_ids"] = [7] * 200000  # one line of more than half a megabyte
                    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await response.write(b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\ndata: [DONE]\n\n' % count)
        except asyncio.CancelledError:
            self.aborted.set()
            raise
        return response


def loop(servers, prompts):
    """prompts: (at_s, tokens, prompt)."""
    return OpenLoop([server.url for server in servers], [Arrival(at_s, tokens) for at_s, tokens, _ in prompts],
                    [json.dumps({"prompt": prompt}).encode() for _, _, prompt in prompts], ANSWER_TOKENS)


class OpenLoopTest(unittest.IsolatedAsyncioTestCase):
    async def test_tokens_are_counted_and_timed_one_by_one(self):
        async with StandIn(lambda _: (1, 2, 1)) as server:
            [outcome] = await loop([server], [(0, 10, "one")]).run(PATIENCE_S)
        self.assertEqual((outcome.is_complete, outcome.error, outcome.tokens), (True, "", [0, 1, 2, 3]))
        self.assertGreater(outcome.first_s, 0)
        # Of an event with two tokens, the second came at once.
        self.assertEqual(len(outcome.gaps_s), 3)
        self.assertEqual(outcome.gaps_s[1], 0.0)
        self.assertGreater(outcome.gaps_s[0], 0.0)

    async def test_a_prompt_is_sent_when_it_arrives_though_others_wait(self):
        def script(prompt):
            if prompt == "second":
                server.release()  # which the first needs
            return (1, "wait", 3) if prompt == "first" else (4,)
        async with StandIn(script) as server:
            outcomes = await loop([server], [(0, 10, "first"), (0.05, 10, "second")]).run(PATIENCE_S)
        self.assertTrue(all(outcome.is_complete for outcome in outcomes))
        self.assertEqual(set(server.asked), {"first", "second"})

    async def test_time_counts_from_the_arrival_and_not_from_the_begin(self):
        async with StandIn(lambda _: (4,)) as server:
            began = asyncio.get_running_loop().time()
            [outcome] = await loop([server], [(0.5, 10, "late")]).run(PATIENCE_S)
            whole_s = asyncio.get_running_loop().time() - began
        self.assertLessEqual(outcome.first_s, whole_s - 0.5)
        self.assertGreaterEqual(outcome.late_s, 0)

    async def test_what_is_not_answered_in_time_is_aborted(self):
        async with StandIn(lambda _: (1, "wait")) as server:
            [outcome] = await loop([server], [(0, 10, "endless")]).run(0.5)
            if server.asked:  # not on a machine that took longer to send it
                await asyncio.wait_for(server.aborted.wait(), PATIENCE_S)
        self.assertEqual((outcome.is_complete, outcome.error), (False, LATE))

    async def test_refusals_broken_streams_and_short_answers_are_errors(self):
        def script(prompt):
            return (1, b'data: {"error": {"message": "lost"}}\n\n') if prompt == "lost" else (1, 1)
        async with StandIn(script) as server:
            refused, lost, short = await loop([server], [(0, 10, "refuse"), (0, 10, "lost"), (0, 10, "short")]).run(PATIENCE_S)
        self.assertEqual(refused.error, "429: full")
        self.assertIn("lost", lost.error)
        self.assertEqual(short.error, "the stream ended after 2 of 4 tokens")
        self.assertFalse(refused.is_complete or lost.is_complete or short.is_complete)

    async def test_a_server_that_is_not_there_is_an_error(self):
        async with StandIn(lambda _: (4,)) as server:
            gone = server
        [outcome] = await loop([gone], [(0, 10, "one")]).run(PATIENCE_S)
        self.assertIn("Connect", outcome.error)

    async def test_a_prompt_goes_where_the_fewest_tokens_wait(self):
        def script(prompt):
            if prompt == "last":
                first.release()
                second.release()
            return ("wait", 4) if prompt != "last" else (4,)
        async with StandIn(script) as first, StandIn(script) as second:
            prompts = [(0, 1000, "long"), (0.1, 10, "a"), (0.2, 10, "b"), (0.3, 2000, "c"), (0.4, 10, "last")]
            outcomes = await loop([first, second], prompts).run(PATIENCE_S)
        # Behind "c" 2,020 tokens wait on the second replica, and 1,000 on the first.
        self.assertEqual([outcome.replica for outcome in outcomes], [0, 1, 1, 1, 0])
        self.assertTrue(all(outcome.is_complete for outcome in outcomes))


if __name__ == "__main__":
    unittest.main(verbosity=2)
