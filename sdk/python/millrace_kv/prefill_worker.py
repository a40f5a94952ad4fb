# SPDX-License-Identifier: Apache-2.0
"""PrefillWorker is what the prefill workers of routers share (dynamo.py, openengine.py): it posts prompts to a coordinator, and says by which
parameters vLLM with MillraceConnector finds their caches.

The parameters are there as soon as a group has room for the cache, so that vLLM pulls layers while later ones are computed. The stream of such a
prefill stays open until its end, because closing it would end the prefill. For one asyncio loop. Errors are MillraceErrors."""
import asyncio
import contextlib
import time

from ._library import MillraceError
from .coordinator import Coordinator, prompt_digest

# With these parameters vLLM computes the prompt, and does not ask Millrace for it.
DECLINED = {"millrace": False}
# The code of prompts that nobody was asked to prefill.
SHORT = "short"


def add_options(parser):
    """The options of a PrefillWorker, for an argparse parser."""
    group = parser.add_argument_group("Millrace")
    group.add_argument("--coordinator", required=True, metavar="HOST:PORT", help="host:port or https://host:port of millrace-coordinator")
    group.add_argument("--coordinator-model", default="", metavar="NAME",
                       help="the coordinator's model (default: the name under which this worker serves it, or the coordinator's only model)")
    group.add_argument("--token-file", default="", help="file whose first line is the token (default: $MILLRACE_TOKEN_FILE, or $MILLRACE_TOKEN)")
    group.add_argument("--ca-file", default="", help="CA certificates for an https:// coordinator (default: $MILLRACE_TLS_CA, or the system's)")
    group.add_argument("--min-tokens", type=int, default=2048, help="shorter prompts are left to the decode engine (default: %(default)s)")
    group.add_argument("--max-wait", type=float, default=60.0, metavar="SECONDS",
                       help="so are those that wait longer for room at Millrace (default: %(default)g)")
    group.add_argument("--decline-after", type=float, metavar="SECONDS",
                       help="so are those that by Millrace's forecast take longer, queue included (default: no limit)")
    group.add_argument("--lease-ms", type=int, default=120000,
                       help="how long Millrace keeps a cache after the prefill if nobody pulls it (default: %(default)s)")


class PrefillWorker:
    def __init__(self, options, served_name=""):
        """`options`: as add_options has them."""
        self._options = options
        self.served_name = served_name
        self._posted = []
        self.coordinator = Coordinator(options.coordinator, token_file=options.token_file, ca_file=options.ca_file)

    def model(self):
        """The name of the coordinator's model. Asks the coordinator, and blocks meanwhile."""
        models = self.coordinator.models()
        if not models:
            raise MillraceError("unavailable", f"coordinator {self.coordinator.address} has no groups")
        name = self._options.coordinator_model or self.served_name
        if name not in models and len(models) == 1 and not self._options.coordinator_model:
            name = next(iter(models))
        if name not in models:
            raise MillraceError("not_found", f"coordinator {self.coordinator.address} has no model {name!r}; it has {', '.join(map(repr, models))}")
        return name

    async def prefill(self, token_ids, *, priority=None, cache_salt=None, trace_headers=None):
        """The kv_transfer_params of a prompt. If this is cancelled, the prompt leaves the queue. `priority`: lower is sooner."""
        if len(token_ids) < self._options.min_tokens:
            raise MillraceError(SHORT, f"{len(token_ids)} tokens are fewer than --min-tokens {self._options.min_tokens}")
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def on_news():
            with contextlib.suppress(RuntimeError):  # the loop has ended before the prefill
                loop.call_soon_threadsafe(news.set)

        how = {"cache_salt": cache_salt, "priority": priority and max(-1000, min(priority, 1000))}
        prefill = self.coordinator.prefill(self.model, token_ids, lease_ms=self._options.lease_ms, on_news=on_news,
                                           before_post=lambda model: self._keep_if_long(model, token_ids, how), trace_headers=trace_headers, **how)
        self._posted = [earlier for earlier in self._posted if not earlier.ended.is_set()] + [prefill]
        manifest, deadline = None, loop.time() + self._options.max_wait
        try:
            while not (manifest := prefill.manifest()):
                await asyncio.wait_for(news.wait(), deadline - loop.time())
                news.clear()
        except asyncio.TimeoutError:
            raise MillraceError("deadline_exceeded", f"no room at Millrace within {self._options.max_wait:g} s") from None
        finally:
            if not manifest:
                prefill.close()
        return {"millrace": {"request_id": prefill.request_id, "lease_id": manifest.lease_id, "prompt_sha256": prompt_digest(token_ids)}}

    def _keep_if_long(self, model, token_ids, how):
        """Runs on the threads of prefills."""
        if self._options.decline_after is None:
            return
        end = self.coordinator.forecast(model, token_ids, **how)
        seconds = end["queue_seconds"] + end["prefill_seconds"]
        if end["is_learnt"] and seconds > self._options.decline_after:
            raise MillraceError("exhausted", f"the prefill should take {seconds:.1f} s; --decline-after is {self._options.decline_after:g}")

    def is_idle(self):
        """Whether all prefills have ended."""
        return all(prefill.ended.is_set() for prefill in self._posted)

    def wait(self, timeout_s=600.0):
        """Waits until they have, and blocks meanwhile."""
        deadline = time.monotonic() + timeout_s
        for prefill in self._posted:
            prefill.ended.wait(max(deadline - time.monotonic(), 0))

    def close(self):
        """Leaves the prefills that run; the coordinator's --on-disconnect says what becomes of them. May be called twice."""
        for prefill in self._posted:
            prefill.close()
