# SPDX-License-Identifier: Apache-2.0
"""Sends prompts to replicas of vLLM's OpenAI server when they arrive, not when earlier ones are answered, and times every token.

Needs aiohttp, which vLLM needs too. Prompts go to the replica with the fewest prompt tokens that wait for a first token, and then to the one with the
fewest requests."""
import asyncio
import json
from dataclasses import dataclass, field

import aiohttp

# Of one line of a stream. With `return_token_ids` the first event has the whole prompt.
_MOST_LINE_BYTES = 32 << 20
_DATA = b"data: "
# What Outcome.error says if nothing went wrong but the time.
LATE = "not answered in time"


@dataclass
class Outcome:
    """What became of one prompt. Times count from its arrival, also if the client was late in sending it."""
    num_tokens: int
    at_s: float
    replica: int = 0
    late_s: float = 0.0
    first_s: float | None = None
    gaps_s: list = field(default_factory=list)  # between one token and the next; 0 for tokens of one event
    tokens: list = field(default_factory=list)  # if the body asks for ids
    error: str = ""
    is_complete: bool = False
    is_wrong: bool = False  # the caller knows


class OpenLoop:
    """`bodies`: one a prompt, bytes of a streamed /v1/completions request with `continuous_usage_stats`. `answer_tokens`: of each answer."""

    def __init__(self, urls, arrivals, bodies, answer_tokens):
        self._urls, self._arrivals, self._bodies, self._answer_tokens = urls, arrivals, bodies, answer_tokens
        self._waiting = [0] * len(urls)  # prompt tokens without a first token, by replica
        self._open = [0] * len(urls)  # requests

    async def run(self, limit_s):
        """Returns the outcomes in order of arrival. Requests that are not answered `limit_s` after the beginning are aborted."""
        outcomes = [Outcome(arrival.num_tokens, arrival.at_s) for arrival in self._arrivals]
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout, read_bufsize=_MOST_LINE_BYTES) as session:
            began = asyncio.get_running_loop().time()
            tasks = [asyncio.create_task(self._send(session, began, outcome, body)) for outcome, body in zip(outcomes, self._bodies, strict=True)]
            if tasks:
                await asyncio.wait(tasks, timeout=limit_s)
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):  # not a cancelled one
                    raise result
        for outcome in outcomes:
            if not outcome.is_complete and not outcome.error:
                outcome.error = LATE
        return outcomes

    def _choose(self):
        return min(range(len(self._urls)), key=lambda replica: (self._waiting[replica], self._open[replica]))

    async def _send(self, session, began, outcome, body):
        clock = asyncio.get_running_loop().time
        arrived = began + outcome.at_s
        await asyncio.sleep(arrived - clock())
        outcome.replica = replica = self._choose()
        outcome.late_s = clock() - arrived
        self._waiting[replica] += outcome.num_tokens
        self._open[replica] += 1
        try:
            async with session.post(self._urls[replica] + "/v1/completions", data=body, headers={"Content-Type": "application/json"}) as response:
                if response.status != 200:
                    outcome.error = f"{response.status}: {(await response.text())[:500]}"
                    return
                await self._read(response.content, outcome, lambda: clock() - arrived)
        except aiohttp.ClientError as why:
            outcome.error = f"{type(why).__name__}: {why}"
        finally:
            self._open[replica] -= 1
            if outcome.first_s is None:
                self._waiting[replica] -= outcome.num_tokens

    async def _read(self, lines, outcome, elapsed_s):
        count, last_s = 0, 0.0
        async for line in lines:
            if not line.startswith(_DATA + b"{"):
                continue
            now_s = elapsed_s()
            event = json.loads(line[len(_DATA):])
            if "choices" not in event:
                outcome.error = f"in the stream: {str(event)[:500]}"
                return
            new = event["usage"]["completion_tokens"] - count
            if not event["choices"] or new <= 0:
                continue
            if outcome.first_s is None:
                outcome.first_s = now_s
                self._waiting[outcome.replica] -= outcome.num_tokens
            else:
                outcome.gaps_s.append(now_s - last_s)
            outcome.gaps_s += [0.0] * (new - 1)
            outcome.tokens += event["choices"][0].get("token_ids") or []
            count, last_s = count + new, now_s
        if count == self._answer_tokens:
            outcome.is_complete = True
        else:
            outcome.error = f"the stream ended after {count} of {self._answer_tokens} tokens"


def run_together(loops, limit_s):
    """Runs all of them at once; see run(). Returns the outcomes of each."""
    async def together():
        return await asyncio.gather(*(loop.run(limit_s) for loop in loops))
    return asyncio.run(together())
