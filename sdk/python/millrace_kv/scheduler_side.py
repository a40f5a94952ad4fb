# SPDX-License-Identifier: Apache-2.0
"""The connector in vLLM's scheduler process: requests prefills, follows them, and decides what is loaded.

A request goes from `waiting` (no blocks, until the manifest arrives) to `loading` (blocks, until every rank has reported), and is then forgotten.
Or it is left to vLLM for good, and the reason is logged."""
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from collections import Counter
from dataclasses import dataclass

from vllm.logger import init_logger

from ._library import MillraceError
from .complaints import Complaints
from .coordinator import Coordinator, CoordinatorLost, EventStream, prompt_digest
from .messages import Load, LoadMetadata
from .model_shape import ModelShape, balance_tokens
from .tracing import trace_headers
from .when_it_pays import WhenItPays

logger = init_logger("vllm.millrace_kv")


@dataclass(eq=False)
class _Remote:
    """A request whose cache comes from Millrace."""

    events: EventStream
    began: float
    millrace_id: str
    lease_id: str = ""  # of a prefill that a router requested
    manifest: object = None
    request: object = None  # vLLM's request, while it loads
    cache_salt: str | None = None  # the request's own
    cancelled: bool = False
    foreseen_s: float | None = None  # by the coordinator


# Codes of prompts that vLLM computes because that should be sooner, or to learn how long it takes.
_KEPT = "sooner", "learning"


class SchedulerSide:
    def __init__(self, options, vllm_config, block_tokens):
        self._options = options
        self._shape = ModelShape.of(vllm_config)
        self._served_name = vllm_config.model_config.served_model_name
        self._block_tokens = block_tokens
        self._coordinator = Coordinator(options.coordinator, options.connect_timeout_s, token_file=options.token_file,
                                        ca_file=options.ca_file)
        self._remotes = {}  # vLLM's request id -> _Remote
        self._left = set()  # ids of requests that vLLM computes itself, or whose load is over
        self._loads = []
        self._cancelled = []
        self._failures = {}  # request id -> (code, why) of its load
        self._news = threading.Event()
        # A group computes one prompt at a time, or one in each of its lanes, so few wait for the end of a prefill at once.
        self._endings = ThreadPoolExecutor(16, "millrace-end")
        self._complaints = Complaints(logger)
        self._model_lock = threading.Lock()
        self._model = None
        self._model_of = None  # the instance of the coordinator that had it
        self._shut_until, self._shut_why = 0.0, None  # until when the coordinator gets no prompts, and why
        self._pays = WhenItPays(balance_tokens(vllm_config), options.min_tokens) if options.only_if_sooner else None
        self._timed = {}  # requests without a first token: id -> (request, _Remote or None if vLLM computes it)
        self._counts = Counter()

    # ---- what vLLM asks

    def num_matched_tokens(self, request, num_computed_tokens):
        """As get_num_new_matched_tokens: (None, False) until the manifest arrives."""
        matched = self._matched(request, num_computed_tokens)
        if self._pays and matched == (0, False):
            # vLLM schedules the request now, or asks again.
            self._pays.forget(request.request_id)
            self._timed.pop(request.request_id, None)
            if request.num_preemptions == 0 and request.num_output_tokens == 0:
                self._timed[request.request_id] = request, None
                self._pays.begins(request.request_id, request.num_prompt_tokens - num_computed_tokens, num_computed_tokens)
        return matched

    def _matched(self, request, num_computed_tokens):
        if request.request_id in self._left:
            return 0, False
        remote = self._remotes.get(request.request_id)
        if remote is None:
            try:
                remote = self._begin(request, num_computed_tokens)
            except MillraceError as why:
                self._leave(request, why)
            if remote is None:
                self._left.add(request.request_id)
                return 0, False
            self._remotes[request.request_id] = remote
        try:
            remote.manifest = remote.manifest or self._take_manifest(remote, request)
            remote.events.check()
        except MillraceError as why:
            self._leave(request, why)
            return 0, False
        if remote.manifest is None:
            return None, False
        return request.num_prompt_tokens - num_computed_tokens, True

    def allocated(self, request, block_ids, num_external_tokens):
        """Called once vLLM has allocated blocks for the tokens that num_matched_tokens promised."""
        if num_external_tokens == 0:
            return
        remote = self._remotes[request.request_id]
        self._left.add(request.request_id)
        first_token = request.num_prompt_tokens - num_external_tokens
        begin = first_token // self._block_tokens
        end = -(-request.num_prompt_tokens // self._block_tokens)
        load = Load(request.request_id, remote.millrace_id, remote.manifest.json(), block_ids[begin:end], first_token, num_external_tokens,
                    trace_headers(request))
        remote.request = request
        remote.cache_salt = request.cache_salt
        if not self._options.reuse:
            self._set_cache_salt(request, f"{request.cache_salt or ''}millrace-{remote.millrace_id}")
        self._loads.append(load)

    def take_counts(self):
        """{outcome: number of prompts} since the last call."""
        counts, self._counts = self._counts, Counter()
        return dict(counts)

    def metadata(self, nothing_scheduled):
        for request_id in [request_id for request_id, (request, _) in self._timed.items() if request.num_output_tokens > 0]:
            self._has_first_token(request_id)
        for request_id, remote in self._remotes.items():
            if remote.request is not None and remote.events.error and not remote.cancelled:
                self._failures.setdefault(request_id, (remote.events.error.code, str(remote.events.error)))
                self._cancel_load(request_id, remote)
        metadata = LoadMetadata(self._loads, self._cancelled)
        self._loads, self._cancelled = [], []
        if nothing_scheduled and self._remotes and not metadata.loads and not metadata.cancelled:
            # vLLM's loop spins while requests wait for their caches. Resting leaves the cores to whoever computes the caches.
            self._news.wait(self._options.idle_ms / 1000)
        self._news.clear()
        return metadata

    def failed(self, reasons):
        """Records why loads failed on some rank. The loads are not over yet."""
        for request_id, why in reasons.items():
            if request_id in self._remotes:
                self._failures.setdefault(request_id, why)

    def received(self, request_ids):
        """Called once every rank has reported its part of these loads."""
        for request_id in request_ids:
            remote = self._remotes.get(request_id)
            if remote is None:
                continue
            failure = self._failures.pop(request_id, None)
            self._counts[failure[0] if failure else "pulled"] += 1
            if failure:
                self._timed.pop(request_id, None)
                self._say(remote.request, *failure)
                # vLLM now computes these blocks itself, so other requests may share them.
                self._set_cache_salt(remote.request, remote.cache_salt)
            self._end(request_id, pulled=not failure)

    def finished(self, request):
        """Called when a request has finished, or was aborted at any point."""
        request_id = request.request_id
        if request_id in self._timed and request.num_output_tokens > 0:
            self._has_first_token(request_id)
        self._timed.pop(request_id, None)
        if self._pays:
            self._pays.forget(request_id)
        remote = self._remotes.get(request_id)
        if remote is not None:
            if remote.request is not None:
                self._cancel_load(request_id, remote)
            self._end(request_id)
        self._failures.pop(request_id, None)
        self._left.discard(request_id)

    def close(self):
        for request_id in list(self._remotes):
            self._end(request_id)
        self._endings.shutdown(wait=True)

    # ---- how a request proceeds

    def _begin(self, request, num_computed_tokens):
        """Starts a prefill, or follows a router's. Returns None if vLLM has to compute the request itself."""
        params = (request.kv_transfer_params or {}).get("millrace")
        if params is False or self._is_vllms(request):
            self._counts["not_asked"] += 1
            return None
        if isinstance(params, dict) and "deadline_ms" not in params:
            return self._follow(request, params)
        new_tokens = request.num_prompt_tokens - num_computed_tokens
        if new_tokens < self._options.min_tokens:
            self._counts["short"] += 1
            return None
        if time.monotonic() < self._shut_until:
            raise MillraceError(self._shut_why.code, self._shut_why.message)
        how = {"head_plan": self._options.head_plan or None, "min_recall": self._options.min_recall or None, "cache_salt": request.cache_salt,
               "deadline_ms": self._deadline_ms(params), "priority": max(-1000, min(request.priority, 1000)) or None}
        remote = _Remote(None, time.monotonic(), "")

        def keep_if_sooner(model):
            remote.foreseen_s = self._foreseen_s(model, request.prompt_token_ids, how)
            if why := self._pays.why_own(new_tokens, num_computed_tokens, remote.foreseen_s):
                raise MillraceError(*why)
        remote.events = self._coordinator.prefill(self._model_name, request.prompt_token_ids, lease_ms=self._options.lease_ms,
                                                  on_disconnect=self._options.on_disconnect or None, on_news=self._news.set,
                                                  before_post=keep_if_sooner if self._pays else None, trace_headers=trace_headers(request), **how)
        remote.millrace_id = remote.events.request_id
        if self._pays:
            self._timed[request.request_id] = request, remote
        logger.debug("request %s is prefilled as %s", request.request_id, remote.millrace_id)
        return remote

    def _foreseen_s(self, model, token_ids, how):
        """Seconds until Millrace will have prefilled a prompt that it gets now; None if it does not know. Runs on the threads of prefills."""
        try:
            end = self._coordinator.forecast(model, token_ids, **how)
            return end["queue_seconds"] + end["prefill_seconds"] if end["is_learnt"] else None
        except CoordinatorLost:
            raise
        except MillraceError:  # of a coordinator that makes no forecasts. If it refuses the prompt, it says so when that is posted
            return None

    @staticmethod
    def _deadline_ms(params):
        """What a client gives as kv_transfer_params.millrace.deadline_ms."""
        if not isinstance(params, dict):
            return None
        deadline_ms = params["deadline_ms"]
        if set(params) != {"deadline_ms"} or isinstance(deadline_ms, bool) or not isinstance(deadline_ms, int) or deadline_ms < 1:
            raise MillraceError("invalid_argument", "kv_transfer_params.millrace is a router's prefill, or a positive integer as deadline_ms alone")
        return deadline_ms

    def _has_first_token(self, request_id):
        """Learns from how long the prompt took."""
        request, remote = self._timed.pop(request_id)
        if remote is None:
            self._pays.ended(request_id)
        elif remote.foreseen_s is not None and request.num_preemptions == 0:
            self._pays.pulled(request.num_prompt_tokens, remote.foreseen_s, time.monotonic() - remote.began)

    @staticmethod
    def _is_vllms(request):
        """Whether only vLLM can compute the request: token ids alone do not describe it, or it has begun already."""
        return (request.prompt_token_ids is None or request.prompt_embeds is not None or request.mm_features
                or request.lora_request is not None or request.pooling_params is not None or request.resumable
                or request.skip_reading_prefix_cache or request.num_preemptions > 0 or request.num_output_tokens > 0)

    def _follow(self, request, params):
        """Follows a prefill that a router requested."""
        missing = [name for name in ("request_id", "lease_id", "prompt_sha256") if not isinstance(params.get(name), str)]
        if missing:
            raise MillraceError("invalid_argument", f"kv_transfer_params.millrace lacks {', '.join(missing)}")
        if params["prompt_sha256"] != prompt_digest(request.prompt_token_ids):
            raise MillraceError("invalid_argument", f"prefill {params['request_id']!r} is of another prompt: prompt_sha256 differs")
        events = self._coordinator.follow(params["request_id"], self._news.set)
        return _Remote(events, time.monotonic(), params["request_id"], params["lease_id"])

    def _model_name(self):
        """The name of the coordinator's model. Raises if that is not vLLM's model. Runs on the threads of prefills."""
        with self._model_lock:
            known = self._model
            if known is None or self._model_of != self._coordinator.instance:
                models = self._coordinator.models()
                name = self._options.model or (self._served_name if self._served_name in models or len(models) != 1 else next(iter(models)))
                if name not in models:
                    raise MillraceError("not_found", f"coordinator {self._coordinator.address} has no model {name!r}; it has "
                                        f"{', '.join(map(repr, models)) or 'none'}")
                difference = self._shape.difference_to_offer(models[name])
                if difference:
                    raise MillraceError("unsupported", f"the coordinator's model {name!r} is another than vLLM's: {difference}")
                self._model, self._model_of = name, self._coordinator.instance
                return name
            return known

    def _take_manifest(self, remote, request):
        manifest = remote.events.manifest()
        if manifest is None:
            if time.monotonic() - remote.began > self._options.max_wait_s:
                raise MillraceError("deadline_exceeded", f"no room at Millrace within {self._options.max_wait_s:g} s")
            return None
        difference = self._shape.difference_to_manifest(manifest)
        if difference:
            raise MillraceError("unsupported", f"the cache of request {manifest.request_id!r} is another model's than vLLM's: {difference}")
        if manifest.is_partial:
            raise MillraceError("unsupported", f"the cache of request {manifest.request_id!r} is kept in part (kv_budget); vLLM's blocks have all kv heads "
                                "of a layer, and take whole caches")
        # A prefill that joined another has the other's request id in its manifest.
        if (remote.lease_id and manifest.lease_id != remote.lease_id) or manifest.num_tokens != request.num_prompt_tokens:
            raise MillraceError("corrupt", f"asked for {request.num_prompt_tokens} tokens of {remote.millrace_id!r}, lease {remote.lease_id!r}; "
                                f"the manifest is of {manifest.num_tokens} of {manifest.request_id!r}, lease {manifest.lease_id!r}")
        return manifest

    def _leave(self, request, why):
        """Leaves the request to vLLM from now on."""
        now = time.monotonic()
        remote = self._remotes.get(request.request_id)
        another_model = why.code == "unsupported" and not (remote and remote.lease_id)
        if now >= self._shut_until and (another_model or isinstance(why, CoordinatorLost)):
            # The next prompt would wait for the same failure, or be prefilled for nothing.
            self._shut_until, self._shut_why = now + self._options.retry_after_s, why
            self._model = None
        self._left.add(request.request_id)
        self._end(request.request_id)
        self._counts[why.code] += 1
        if why.code in _KEPT:
            logger.debug("request %s: %s", request.request_id, why)
        else:
            self._say(request, why.code, str(why))

    def _say(self, request, code, why):
        self._complaints.say(code, f"vLLM computes the {request.num_prompt_tokens} tokens of request {request.request_id} itself: {why}")

    def _cancel_load(self, request_id, remote):
        remote.cancelled = True
        self._cancelled.append(request_id)

    def _end(self, request_id, pulled=False):
        """Cancels the prefill, or releases its lease, without making vLLM wait."""
        remote = self._remotes.pop(request_id, None)
        if remote is not None:
            self._endings.submit(self._end_remote, remote, pulled)

    def _end_remote(self, remote, pulled):
        if pulled:
            # The last page arrives before the prefill ends. Until it ends, its lease cannot be released, and it would count as cancelled.
            remote.events.ended.wait(self._options.pull_timeout_s)
        if remote.events.error and remote.events.error.code in ("peer_lost", "not_found", *_KEPT):
            return
        try:
            if remote.lease_id:  # a router's prefill: release only the lease that it gave
                self._coordinator.release(remote.millrace_id, remote.lease_id)
            else:
                self._coordinator.end(remote.millrace_id)
        except MillraceError as why:
            if why.code not in ("not_found", "cancelled"):  # those two mean that it has ended by itself
                self._complaints.say("lease", f"the lease of {remote.millrace_id} was not released and ends by itself: {why}")
        remote.events.close()

    @staticmethod
    def _set_cache_salt(request, cache_salt):
        """Sets the request's salt. The prefix cache finds blocks by hashes that begin with it, so with a unique salt no other request finds them."""
        if request.cache_salt != cache_salt:
            request.cache_salt = cache_salt
            request.block_hashes.clear()
            request.update_block_hashes()
