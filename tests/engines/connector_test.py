#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MillraceConnector without an engine: how it fits the interface of the vLLM that is installed, what it decides about options and models, and
where it puts a cache."""
import http.server
import inspect
import json
import math
import re
import threading
import types
import unittest
import urllib.parse
from unittest import mock

import torch
import vllm
from millrace_kv import tracing, worker_side
from millrace_kv._library import MillraceError
from millrace_kv.client import Client
from millrace_kv.connector import MillraceConnector
from millrace_kv.coordinator import Coordinator, EventStream
from millrace_kv.messages import Load, LoadFailures
from millrace_kv.model_shape import ModelShape, balance_tokens
from millrace_kv.options import Options
from millrace_kv.prompt_counts import PromptCounts
from millrace_kv.scheduler_side import SchedulerSide, _Remote
from millrace_kv.vllm_parts import pack_blocks, why_unfit
from millrace_kv.when_it_pays import WhenItPays
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode, UniformTypeKVCacheSpecs

GIVEN = {"coordinator": "host:8000"}
SHAPE = ModelShape(num_layers=5, num_kv_heads=2, head_dim=128, dtype="bfloat16", vocab_size=2048)


class OptionsTest(unittest.TestCase):
    def test_what_is_not_said_has_a_default(self):
        self.assertEqual(Options.parse(GIVEN), Options(coordinator="host:8000"))
        self.assertEqual(Options.parse({**GIVEN, "min_recall": 1, "reuse": True}).min_recall, 1.0)

    def test_what_is_wrong_is_named(self):
        for config, name in (({}, "coordinator"), ({**GIVEN, "min_token": 5}, "min_token"), ({**GIVEN, "min_tokens": "5"}, "min_tokens"),
                             ({**GIVEN, "min_tokens": True}, "min_tokens"), ({**GIVEN, "reuse": 1}, "reuse"), ({**GIVEN, "transport": "rdma"}, "transport"),
                             ({**GIVEN, "lease_ms": 0}, "lease_ms"), ({**GIVEN, "on_disconnect": "wait"}, "on_disconnect is 'wait'")):
            with self.subTest(config=config), self.assertRaisesRegex(ValueError, name):
                Options.parse(config)


class VersionTest(unittest.TestCase):
    """The connector against the vLLM that is installed, whichever it is."""

    def test_this_vllm_has_what_the_connector_needs(self):
        self.assertEqual(why_unfit(MillraceConnector), "")
        self.assertFalse(inspect.isabstract(MillraceConnector))

    def test_the_connector_overrides_methods_with_the_parameters_that_they_have(self):
        for name, member in vars(MillraceConnector).items():
            theirs = next((vars(base)[name] for base in MillraceConnector.__mro__[1:] if name in vars(base)), None)
            if not name.startswith("_") and inspect.isfunction(member) and theirs is not None:
                self.assertEqual(list(inspect.signature(member).parameters), list(inspect.signature(theirs).parameters), name)

    def test_a_vllm_that_lacks_a_method_or_passes_more_is_refused_at_start(self):
        class Future(MillraceConnector):
            def save_one_token(self):
                pass

            def get_finished(self):
                pass
        self.assertEqual(why_unfit(Future), "its connectors have no save_one_token()")
        del Future.save_one_token
        self.assertEqual(why_unfit(Future), "it passes finished_req_ids to get_finished()")
        with mock.patch("millrace_kv.connector.why_unfit", return_value="it has changed"), self.assertRaisesRegex(
                RuntimeError, f"does not fit vLLM {re.escape(vllm.__version__)}: it has changed"):
            connector_of(full_attention())

    def test_a_request_has_what_the_connector_reads(self):
        """vLLM's own request, salted, has other block hashes, and the former ones when its salt is taken back."""
        from vllm import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request
        init_none_hash(sha256)
        request = Request("vllms", list(range(40)), SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": {"millrace": False}}), None,
                          block_hasher=get_request_block_hasher(16, sha256))
        self.assertFalse(SchedulerSide._is_vllms(request))
        self.assertEqual((request.num_prompt_tokens, request.prompt_token_ids), (40, list(range(40))))
        self.assertEqual(request.kv_transfer_params, {"millrace": False})
        unsalted = list(request.block_hashes)
        self.assertEqual(len(unsalted), 2)
        SchedulerSide._set_cache_salt(request, "ours")
        self.assertEqual(len(request.block_hashes), 2)
        self.assertFalse(set(request.block_hashes) & set(unsalted))
        SchedulerSide._set_cache_salt(request, None)
        self.assertEqual(request.block_hashes, unsalted)

    def test_what_workers_report_reaches_the_scheduler(self):
        from vllm.v1.outputs import KVConnectorOutput
        connector = connector_of(full_attention())
        self.addCleanup(connector.shutdown)
        with mock.patch.object(connector, "_scheduler") as side:
            failures = LoadFailures({"a": ("corrupt", "x")})
            connector.update_connector_output(KVConnectorOutput(finished_recving={"a"}, kv_connector_worker_meta=failures))
            connector.update_connector_output(KVConnectorOutput())
        self.assertEqual([call.args[0] for call in side.failed.call_args_list], [{"a": ("corrupt", "x")}, {}])
        self.assertEqual([set(call.args[0]) for call in side.received.call_args_list], [{"a"}, set()])


class ModelTest(unittest.TestCase):
    def test_another_model_is_told_by_its_numbers(self):
        same = {"num_layers": 5, "num_kv_heads": 2, "head_dim": 128, "dtype": "bfloat16"}
        self.assertEqual(SHAPE.difference_to_manifest(types.SimpleNamespace(**same)), "")
        for name, other in ("num_layers", 6), ("num_kv_heads", 4), ("head_dim", 64), ("dtype", "float32"), ("dtype", "float16"):
            difference = SHAPE.difference_to_manifest(types.SimpleNamespace(**{**same, name: other}))
            self.assertEqual(difference, f"{name} {other} and not {same[name]}")
        offer = {"num_layers": 5, "dtype": "bfloat16", "vocab_size": 2048}
        self.assertEqual(SHAPE.difference_to_offer(offer), "")
        self.assertEqual(SHAPE.difference_to_offer({**offer, "vocab_size": 32000}), "vocab_size 32000 and not 2048")

    def test_a_cache_in_8_bit_floats_is_of_the_model_that_has_its_other_numbers(self):
        float8 = {"num_layers": 5, "num_kv_heads": 2, "head_dim": 128, "dtype": "float8_e4m3"}
        self.assertEqual(SHAPE.difference_to_manifest(types.SimpleNamespace(**float8)), "")
        self.assertEqual(SHAPE.difference_to_manifest(types.SimpleNamespace(**{**float8, "head_dim": 64})), "head_dim 64 and not 128")


class FailuresTest(unittest.TestCase):
    def test_of_several_ranks_the_first_is_heard(self):
        one = LoadFailures({"a": ("peer_lost", "rank 0")})
        other = LoadFailures({"a": ("peer_lost", "rank 1"), "b": ("corrupt", "rank 1")})
        self.assertEqual(one.aggregate(other).reasons, {"a": ("peer_lost", "rank 0"), "b": ("corrupt", "rank 1")})

    def test_errors_say_their_code(self):
        self.assertEqual(str(MillraceError("peer_lost", "rank 0")), "peer_lost: rank 0")


class FakePrefill:
    """The events and the coordinator of one prefill, which record the calls in order. The prefill ends when somebody waits for its end."""

    def __init__(self):
        self.error, self.ended, self.calls = None, self, []

    def wait(self, timeout_s):
        self.calls.append("wait")
        return True

    def end(self, request_id):
        self.calls.append(f"end {request_id}")

    def release(self, request_id, lease_id):
        self.calls.append(f"release {request_id} {lease_id}")

    def close(self):
        self.calls.append("close")


def vllm_config(**parts):
    shape = {"get_total_num_hidden_layers": 5, "get_total_num_kv_heads": 2, "get_head_size": 128, "get_vocab_size": 2048}
    model = types.SimpleNamespace(dtype="torch.bfloat16", served_model_name="fixture",
                                  **{name: lambda value=value: value for name, value in shape.items()})
    return types.SimpleNamespace(model_config=model, **parts)


def scheduler_side(**options):
    return SchedulerSide(Options.parse({**GIVEN, **options}), vllm_config(), 16)


def prompt_request():
    """A request as vLLM's scheduler has it."""
    return types.SimpleNamespace(request_id="vllms", num_prompt_tokens=2048, prompt_token_ids=[0] * 2048, kv_transfer_params=None, prompt_embeds=None,
                                 mm_features=(), lora_request=None, pooling_params=None, resumable=False, skip_reading_prefix_cache=False,
                                 num_preemptions=0, num_output_tokens=0, cache_salt=None, priority=0)


class Offers(http.server.BaseHTTPRequestHandler):
    """A coordinator that has a model and refuses all prompts. Its server records the requests in `asked`."""

    def do_GET(self):
        self.server.asked.append(f"GET {self.path.partition('?')[0]}")
        self.answer(200, {"data": [self.server.offer]})

    def do_POST(self):
        path, _, query = self.path.partition("?")
        self.server.asked.append(f"POST {path}")
        self.server.fields = dict(urllib.parse.parse_qsl(query))
        self.rfile.read(int(self.headers["Content-Length"]))
        if path == "/v1/prefill:forecast" and self.server.foreseen_s is not None:
            self.answer(200, {"queue_seconds": 0.25, "prefill_seconds": self.server.foreseen_s - 0.25, "is_learnt": True})
        elif path == "/v1/prefill:forecast":
            self.answer(413, {"error": {"type": "too_large", "message": "limit 4096"}})
        else:
            self.answer(503, {"error": {"type": "unavailable", "message": "no group"}})

    def do_DELETE(self):
        self.answer(404, {"error": {"type": "not_found", "message": "no such request"}})

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if instance := getattr(self.server, "instance", None):
            self.send_header("X-Millrace-Instance", instance)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class OfferTest(unittest.TestCase):
    def asked(self, cache_salt=None, foreseen_s=None, own_s=None, params=None, priority=0, options=(), **offer):
        """What a coordinator with this model is asked for one prompt, and why that prompt is left to vLLM. `foreseen_s`: its forecast, of a coordinator
        that makes some. `own_s`: what vLLM has taken for such a prompt."""
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Offers)
        server.foreseen_s = foreseen_s
        server.offer, server.asked = {"id": "fixture", "num_layers": 5, "dtype": "bfloat16", "vocab_size": 2048, **offer}, []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        side = scheduler_side(coordinator=f"127.0.0.1:{server.server_port}", **dict(options))
        side._say = mock.Mock()
        if own_s is not None:
            with mock.patch.object(side._pays, "_clock", side_effect=[0.0, own_s]):
                side._pays.begins("before", 2048, 0)
                side._pays.ended("before")
        try:
            request, promised = prompt_request(), (None, False)
            request.cache_salt, request.priority = cache_salt, priority
            request.kv_transfer_params = params
            while promised[0] is None:
                promised = side.num_matched_tokens(request, 0)
                if request.request_id in side._remotes:
                    side._remotes[request.request_id].events.ended.wait(60)
            self.assertEqual(promised, (0, False))
            self.fields = getattr(server, "fields", None)
            self.counts = side.take_counts()
            return server.asked, side._say.call_args and side._say.call_args.args[2]
        finally:
            side.close()
            server.shutdown()
            thread.join()
            server.server_close()

    def test_a_group_of_another_model_or_type_gets_no_prompt(self):
        for name, other in ("dtype", "float32"), ("num_layers", 6), ("vocab_size", 32000):
            with self.subTest(name=name):
                asked, why = self.asked(**{name: other})
                self.assertEqual(asked, ["GET /v1/models"])
                self.assertRegex(why, f"^unsupported: .* is another than vLLM's: {name} {other} and not ")

    def test_one_of_the_same_gets_it(self):
        self.assertEqual(self.asked(options={"only_if_sooner": False}), (["GET /v1/models", "POST /v1/prefill"], "unavailable: no group"))
        self.assertEqual(set(self.fields), {"model", "request_id", "stream", "handover", "lease_ms"})
        self.assertEqual(self.counts, {"unavailable": 1})

    def test_it_is_told_what_becomes_of_a_prefill_that_is_left(self):
        self.asked(options={"only_if_sooner": False, "on_disconnect": "finish"})
        self.assertEqual(self.fields["on_disconnect"], "finish")

    def test_a_coordinator_without_forecasts_gets_it_too(self):
        self.assertEqual(self.asked(), (["GET /v1/models", "POST /v1/prefill:forecast", "POST /v1/prefill"], "unavailable: no group"))

    def test_the_forecast_is_asked_for_as_the_prompt_would_be_posted(self):
        how = {"priority": -3, "params": {"millrace": {"deadline_ms": 1500}}, "options": {"head_plan": "dense"}, "cache_salt": "tenant"}
        self.asked(**how, foreseen_s=0.5, own_s=0.1)
        self.assertEqual(set(self.fields), {"model", "head_plan", "deadline_ms", "priority", "cache_salt"})
        forecast = self.fields
        self.asked(**how, foreseen_s=0.1 + 0.25, own_s=5.0)
        self.assertEqual({**self.fields, **forecast}, self.fields)
        self.assertEqual((self.fields["priority"], self.fields["deadline_ms"]), ("-3", "1500"))

    def test_a_prompt_that_vllm_computes_sooner_is_not_posted_and_nothing_is_logged(self):
        self.assertEqual(self.asked(foreseen_s=0.5, own_s=0.4), (["GET /v1/models", "POST /v1/prefill:forecast"], None))
        self.assertEqual(self.counts, {"sooner": 1})
        asked, why = self.asked(foreseen_s=0.5, own_s=0.6)
        self.assertEqual((asked[-1], why), ("POST /v1/prefill", "unavailable: no group"))

    def test_what_is_no_deadline_is_refused(self):
        for wrong in 0, True, "5", 1.5:
            asked, why = self.asked(params={"millrace": {"deadline_ms": wrong}})
            self.assertEqual(asked, [])
            self.assertRegex(why, "^invalid_argument: .*positive integer as deadline_ms")

    def test_prompts_of_one_salt_alone_share_cached_pages(self):
        self.asked(cache_salt="tenant Ä")  # any text; it is sent in a form that the coordinator accepts
        one = self.fields["cache_salt"]
        self.assertRegex(one, "^[0-9a-f]{64}$")
        self.asked(cache_salt="tenant B")
        self.assertNotEqual(self.fields["cache_salt"], one)


    def test_a_coordinator_that_another_process_has_replaced_is_asked_for_its_model_again(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Offers)
        server.offer, server.asked, server.instance = {"id": "fixture", "num_layers": 5, "dtype": "bfloat16", "vocab_size": 2048}, [], "one"
        server.foreseen_s = 0.5
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        side = scheduler_side(coordinator=f"127.0.0.1:{server.server_port}")
        try:
            for _ in range(2):
                self.assertEqual(side._model_name(), "fixture")
            self.assertEqual(server.asked, ["GET /v1/models"])
            server.instance, server.offer["dtype"] = "two", "float32"
            side._foreseen_s("fixture", [1, 2], {})
            with self.assertRaisesRegex(MillraceError, "dtype float32"):
                side._model_name()
        finally:
            side.close()
            server.shutdown()
            thread.join()
            server.server_close()


class WhenItPaysTest(unittest.TestCase):
    """A vLLM whose attention costs as much as the rest behind 1000 tokens, and whose floor is 100 tokens."""

    def setUp(self):
        self.now = 0.0
        self.pays = WhenItPays(balance_tokens=1000, min_tokens=100, clock=lambda: self.now)

    def own(self, tokens, took_s, cached=0):
        self.pays.begins("a", tokens, cached)
        self.now += took_s
        self.pays.ended("a")

    def code(self, tokens, foreseen_s, cached=0):
        why = self.pays.why_own(tokens, cached, foreseen_s)
        return why and why[0]

    def test_the_sooner_one_gets_it(self):
        self.own(1000, 1.5)
        self.assertEqual([self.code(1000, 1.4), self.code(1000, 1.6)], [None, "sooner"])

    def test_attention_grows_with_what_comes_before(self):
        self.own(1000, 1.5)  # 1 ms a token and 1 ms a thousand tokens before it
        self.assertEqual([self.code(2000, 3.9), self.code(2000, 4.1)], [None, "sooner"])
        self.assertEqual([self.code(1000, 3.4, cached=2000), self.code(1000, 3.6, cached=2000)], [None, "sooner"])

    def test_what_vllm_still_computes_comes_first(self):
        self.own(1000, 1.5)
        self.pays.begins("b", 1000, 0)
        self.now += 1
        self.assertEqual([self.code(1000, 1.9), self.code(1000, 2.1)], [None, "sooner"])
        self.pays.forget("b")
        self.assertEqual(self.code(1000, 1.6), "sooner")

    def test_millraces_forecast_is_corrected_by_what_its_prompts_took(self):
        self.own(1000, 1.5)
        self.assertIsNone(self.code(1000, 1.4))
        self.pays.pulled(1000, foreseen_s=2.0, took_s=2.4)
        self.assertEqual([self.code(1000, 1.2), self.code(1000, 1.3)], [None, "sooner"])

    def test_vllm_computes_a_short_prompt_to_learn_but_one_at_a_time(self):
        self.assertEqual([self.code(400, 0.1), self.code(401, 0.1)], ["learning", None])
        self.pays.begins("a", 100, 0)
        self.assertEqual(self.code(400, 0.1), "learning")
        self.pays.begins("b", 200, 0)
        self.assertIsNone(self.code(400, 0.1))

    def test_of_another_length_vllm_learns_where_it_may_be_nearly_as_fast(self):
        self.own(300, 0.3 * 1.15)  # 1 ms a token without attention, as above
        self.assertEqual([self.code(4000, 5.9), self.code(4000, 6.1), self.code(4000, 12.1)], [None, "learning", "sooner"])
        self.own(4000, 12)
        self.assertIsNone(self.code(4000, 6.1))

    def test_millrace_learns_first(self):
        self.own(1000, 0.1)
        self.assertIsNone(self.code(1000, None))
        self.assertIsNone(self.code(400, None))

    def test_what_is_long_ago_does_not_count(self):
        self.own(1000, 1.5)
        self.pays.pulled(1000, foreseen_s=1.0, took_s=10.0)
        self.now += 500
        self.own(1000, 1.5)
        self.assertEqual(self.code(1000, 1.4), "sooner")
        self.now += 101
        self.assertIsNone(self.code(1000, 1.4))
        self.now += 600
        self.assertIsNone(self.code(1000, 9.0))

    def test_prompts_of_few_tokens_are_not_timed(self):
        self.own(255, 9.0)
        self.assertEqual(self.code(400, 0.1), "learning")


class TimesTest(unittest.TestCase):
    """What the scheduler's side takes for a prompt's time."""

    def setUp(self):
        self.side = scheduler_side()
        self.addCleanup(self.side.close)
        self.side._pays = mock.Mock()
        self.request = prompt_request()

    def test_vllms_is_from_the_last_time_that_it_asked_to_the_first_token(self):
        self.request.kv_transfer_params = {"millrace": False}
        for _ in range(2):
            self.assertEqual(self.side.num_matched_tokens(self.request, 512), (0, False))
        self.assertEqual(self.side._pays.begins.mock_calls, [mock.call("vllms", 1536, 512)] * 2)
        self.side.metadata(nothing_scheduled=False)
        self.side._pays.ended.assert_not_called()
        self.request.num_output_tokens = 1
        self.side.metadata(nothing_scheduled=False)
        self.side.metadata(nothing_scheduled=False)
        self.side._pays.ended.assert_called_once_with("vllms")

    def test_of_a_request_that_ends_with_its_first_token_too(self):
        self.request.kv_transfer_params = {"millrace": False}
        self.side.num_matched_tokens(self.request, 0)
        self.request.num_output_tokens = 1
        self.side.finished(self.request)
        self.side._pays.ended.assert_called_once_with("vllms")

    def test_an_aborted_or_preempted_one_has_none(self):
        self.request.kv_transfer_params = {"millrace": False}
        self.side.num_matched_tokens(self.request, 0)
        self.side.finished(self.request)
        self.request.num_preemptions = 1
        self.side.num_matched_tokens(self.request, 0)
        self.request.num_output_tokens = 1
        self.side.metadata(nothing_scheduled=False)
        self.side._pays.ended.assert_not_called()
        self.assertEqual(self.side._timed, {})

    def test_millraces_is_from_when_it_was_asked_to_the_first_token(self):
        with mock.patch("millrace_kv.scheduler_side.time.monotonic", return_value=100.0):
            remote = _Remote(FakePrefill(), 90.0, "ours", request=self.request, foreseen_s=8.0)
            self.side._coordinator = remote.events
            self.side._remotes["vllms"], self.side._timed["vllms"] = remote, (self.request, remote)
            self.side.received(["vllms"])
            self.request.num_output_tokens = 1
            self.side.metadata(nothing_scheduled=False)
        self.side._pays.pulled.assert_called_once_with(2048, 8.0, 10.0)
        self.assertEqual(self.side.take_counts(), {"pulled": 1})

    def test_a_failed_load_teaches_nothing(self):
        remote = _Remote(FakePrefill(), 90.0, "ours", request=self.request, foreseen_s=8.0)
        self.side._coordinator = remote.events
        self.side._remotes["vllms"], self.side._timed["vllms"] = remote, (self.request, remote)
        self.side.failed({"vllms": ("corrupt", "rank 0")})
        self.side.received(["vllms"])
        self.request.num_output_tokens = 1
        self.side.metadata(nothing_scheduled=False)
        self.side._pays.pulled.assert_not_called()
        self.assertEqual(self.side.take_counts(), {"corrupt": 1})


class BalanceTest(unittest.TestCase):
    def test_llama_3_8bs(self):
        sizes = types.SimpleNamespace(hidden_size=4096, num_attention_heads=32, intermediate_size=14336)
        model = types.SimpleNamespace(hf_text_config=sizes, get_head_size=lambda: 128, get_total_num_kv_heads=lambda: 8)
        # q, k, v and o: 2 x 4096 x 4096 + 2 x 4096 x 1024; gate, up and down: 3 x 4096 x 14336; attention: 2 x 4096 a token before it.
        self.assertEqual(balance_tokens(types.SimpleNamespace(model_config=model)), 26624)
        model.hf_text_config = None
        self.assertEqual(balance_tokens(types.SimpleNamespace(model_config=model)), 26624)


class CountsTest(unittest.TestCase):
    def test_they_reach_vllms_metrics(self):
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram
        one, other = PromptCounts({"pulled": 2}), PromptCounts({"pulled": 1, "sooner": 4})
        self.assertTrue(PromptCounts({}).is_empty())
        both = MillraceConnector.build_kv_connector_stats(one.data).aggregate(other)
        self.assertEqual(both.reduce(), {"Millrace pulled": 3, "Millrace sooner": 4})
        metrics = MillraceConnector.build_prom_metrics(types.SimpleNamespace(kv_transfer_config=None), {kind: kind for kind in (Counter, Gauge, Histogram)},
                                                       ["model_name", "engine"], {0: ["fixture", "0"]})
        metrics.observe(both.data)
        labels = {"model_name": "fixture", "engine": "0", "outcome": "sooner"}
        self.assertEqual(REGISTRY.get_sample_value("vllm:millrace_prompts_total", labels), 4)


class EventStreamTest(unittest.TestCase):
    def test_who_waits_hears_the_code_of_what_fails_meanwhile(self):
        for name in "manifest", "result":
            with self.subTest(name=name):
                waiting = threading.Event()

                def refuse(waiting=waiting):
                    waiting.wait(60)
                    raise MillraceError("unsupported", "another model")

                stream = EventStream(Coordinator("host:1"), refuse)
                wait = getattr(stream.feed, name)

                def wait_and_say(timeout_s, waiting=waiting, wait=wait):
                    waiting.set()
                    return wait(timeout_s)

                with mock.patch.object(stream.feed, name, wait_and_say), self.assertRaises(MillraceError) as failure:
                    getattr(stream, name)(60)
                self.assertEqual(failure.exception.code, "unsupported")


def full_attention(**numbers):
    return FullAttentionSpec(**{"block_size": 16, "num_kv_heads": 2, "head_size": 128, "dtype": torch.bfloat16, **numbers})


def connector_of(spec, cache_dtype="auto"):
    """The scheduler's instance in a vLLM with such a KV cache."""
    config = vllm_config(kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=GIVEN, is_kv_consumer=True),
                         parallel_config=types.SimpleNamespace(), cache_config=types.SimpleNamespace(cache_dtype=cache_dtype))
    groups = [types.SimpleNamespace(kv_cache_spec=spec, layer_names=[f"layers.{layer}" for layer in range(5)])]
    return MillraceConnector(config, KVConnectorRole.SCHEDULER, types.SimpleNamespace(kv_cache_groups=groups))


class OwnCacheTest(unittest.TestCase):
    def promised(self, spec, cache_dtype="auto"):
        """For a vLLM with such a KV cache: what it is promised for a prompt, whether the prompt is prefilled, and what is logged."""
        with mock.patch("millrace_kv.scheduler_side.Coordinator") as coordinator, mock.patch("millrace_kv.connector.logger.warning") as said:
            prefill = coordinator.return_value.prefill
            prefill.return_value.manifest.return_value = None
            connector = connector_of(spec, cache_dtype)
            promised = connector.get_num_new_matched_tokens(prompt_request(), 0)
            connector.shutdown()
        return promised, prefill.called, [call.args[0] % call.args[1:] for call in said.call_args_list]

    def test_one_in_8_bit_floats_leaves_all_prompts_to_vllm_and_says_so_at_start(self):
        spec = full_attention(dtype=torch.uint8, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR)
        self.assertEqual(self.promised(spec, "fp8"), (
            (0, False), False, ["MillraceConnector leaves all prompts to vLLM: the KV cache is kept as fp8 (torch.uint8), the model computes in bfloat16"]))

    def test_one_in_the_models_type_has_them_prefilled(self):
        self.assertEqual(self.promised(full_attention()), ((None, False), True, []))

    def test_one_with_a_spec_for_each_layer_is_judged_by_every_layer(self):
        def layers(last):
            specs = {f"layers.{layer}": full_attention() for layer in range(4)}
            return UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={**specs, "layers.4": last})
        self.assertEqual(self.promised(layers(full_attention())), ((None, False), True, []))
        windowed = full_attention(sliding_window=512)
        self.assertEqual(self.promised(layers(windowed)), (
            (0, False), False, ["MillraceConnector leaves all prompts to vLLM: its attention is not full attention over K and V (FullAttentionSpec)"]))


class PackingTest(unittest.TestCase):
    def test_packed_blocks_are_those_that_vllm_writes_itself(self):
        """Blocks that were written plainly and packed are those that vLLM's kernel makes of the same tokens' K and V, on a CPU."""
        from vllm._custom_ops import cpu_attn_reshape_and_cache
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
        blocks, heads, tokens, width, ids = 6, 2, 128, 64, [4, 1]
        numbers = torch.Generator().manual_seed(2)
        k, v = (torch.randn(len(ids) * tokens, heads, width, generator=numbers).bfloat16() for _ in "kv")
        expected, found = (torch.zeros(blocks, heads, tokens, 2 * width, dtype=torch.bfloat16) for _ in range(2))
        slots = torch.cat([torch.arange(tokens) + block * tokens for block in ids])
        # The attention sees a block as its K followed by its V.
        caches = expected.view(blocks, heads, 2 * tokens, width).chunk(2, dim=2)
        cpu_attn_reshape_and_cache(k, v, *caches, slots, _get_attn_isa(k.dtype, tokens, width))
        for at, block in enumerate(ids):
            mine = slice(at * tokens, (at + 1) * tokens)
            found[block, ..., :width], found[block, ..., width:] = k[mine].transpose(0, 1), v[mine].transpose(0, 1)
        self.assertFalse(torch.equal(found, expected))
        pack_blocks(found, ids)
        self.assertTrue(torch.equal(found, expected))


class LandingTest(unittest.TestCase):
    """The second of vLLM's two ranks pulls the second kv head of tokens 32 to 99 of a cache in 8-bit floats."""

    NUM_LAYERS, NUM_HEADS, HEAD_DIM, NUM_TOKENS = 3, 2, 8, 100
    FIRST_TOKEN, BLOCK_TOKENS, KERNEL_TOKENS, NUM_BLOCKS = 32, 32, 16, 9
    BLOCK_IDS = [7, 2, 5]
    SCALES = [(3 / 64, 1.0), (0.5, 13 / 1024), (3.0, 0.25)]
    MARK = -1234.0

    def setUp(self):
        numbers = torch.Generator().manual_seed(1)
        codes = torch.randint(0, 256, (self.NUM_LAYERS, 2, self.NUM_HEADS, self.NUM_TOKENS, self.HEAD_DIM), generator=numbers, dtype=torch.uint8)
        codes[codes & 0x7F == 0x7F] = 0  # replaces NaNs
        self.codes = codes
        self.state = worker_side._LoadState(None)

    @staticmethod
    def e4m3(code):
        """The value of a code: sign, 4 bits of exponent with bias 7, 3 bits of mantissa."""
        exponent, mantissa = code >> 3 & 15, code & 7
        magnitude = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
        return -magnitude if code & 0x80 else magnitude

    def pull(self, manifest, layers, block_ids, *, timeout_s, first_layer=0, first_kv_head=0, first_token=0, num_tokens=None, feed=None,
             decode_float8=False):
        """Like Client.pull: refuses what that refuses, and writes the numbers where they belong."""
        if not decode_float8:
            raise MillraceError("unsupported", "nothing is decoded unless the request says so")
        for layer, halves in enumerate(layers, first_layer):
            for half, view in enumerate(halves):
                heads = slice(first_kv_head, first_kv_head + view.shape[1])
                numbers = self.codes[layer, half, heads].view(torch.float8_e4m3fn).float() * self.SCALES[layer][half]
                for token in range(num_tokens):
                    view[block_ids[token // view.shape[2]], :, token % view.shape[2]] = numbers[:, first_token + token].to(view.dtype)
        return mock.Mock(**{"stats.return_value": {"bytes": 60, "bytes_same_host": 50, "bytes_device_pool": 20, "bytes_tcp": 10, "bytes_shm": 0,
                                                   "bytes_other": 0, "seconds": 0.5}})

    def landed(self, dtype, staged):
        """vLLM's caches after the load, and the (layer, ids) that were reordered for the CPU's attention."""
        name = str(dtype).removeprefix("torch.")
        shape = ModelShape(self.NUM_LAYERS, self.NUM_HEADS, self.HEAD_DIM, name, 2048)
        row = 2 * self.HEAD_DIM * dtype.itemsize
        # Each piece has two kernel blocks.
        options = Options.parse({**GIVEN, "staging_bytes": 2 * 2 * self.KERNEL_TOKENS * row})
        worker = worker_side.WorkerSide(options, shape, self.BLOCK_TOKENS, tp_size=2, tp_rank=1)
        self.addCleanup(worker.close)
        caches = {f"layers.{layer}.attn": torch.full((2 * self.NUM_BLOCKS, 1, self.KERNEL_TOKENS, 2 * self.HEAD_DIM), self.MARK, dtype=dtype)
                  for layer in range(self.NUM_LAYERS)}
        worker.register(caches)
        worker._layers.staged = staged
        worker._client.close()
        worker._client = types.SimpleNamespace(pull=self.pull, close=lambda: None)
        worker._coordinator = types.SimpleNamespace(follow=lambda request_id: types.SimpleNamespace(feed=None, close=lambda: None))
        manifest = types.SimpleNamespace(num_layers=self.NUM_LAYERS, num_kv_heads=self.NUM_HEADS, head_dim=self.HEAD_DIM, dtype="float8_e4m3",
                                         request_id="ours")
        load = Load("vllms", "", "", self.BLOCK_IDS, self.FIRST_TOKEN, self.NUM_TOKENS - self.FIRST_TOKEN)
        in_order, packed = list(caches.values()), []

        def pack(cache, ids):
            packed.append((next(layer for layer, one in enumerate(in_order) if one is cache), ids))
        with mock.patch.object(worker_side, "Manifest", return_value=manifest), \
                mock.patch.object(worker_side, "pack_blocks", pack), \
                mock.patch.object(worker_side.logger, "info") as self.told:
            self.stats = worker._load(load, self.state)
            worker._load(load, self.state)
        return in_order, packed[:len(packed) // 2]

    def test_what_carried_the_bytes_is_counted_and_told_once(self):
        for staged, num_pulls in (False, 1), (True, self.NUM_LAYERS * 3):
            with self.subTest(staged=staged):
                self.landed(torch.float32, staged)
                self.assertEqual([self.stats[name] for name in ("bytes", "bytes_device_pool")], [60 * num_pulls, 20 * num_pulls])
                self.assertEqual(worker_side.bytes_by_way(self.stats),
                                 {"device pools": 20 * num_pulls, "host memory of this host": 30 * num_pulls, "TCP": 10 * num_pulls})
                self.told.assert_called_once()
                self.assertIn(f"{20 * num_pulls} from device pools, {30 * num_pulls} from host memory of this host", self.told.call_args.args[2])

    def test_only_the_option_pulls_into_blocks_on_a_gpu_and_other_devices_refuse_it(self):
        shape = ModelShape(1, 1, self.HEAD_DIM, "float32", 2048)
        # A device that is neither a CPU nor NVIDIA's.
        caches = [torch.empty(4, 1, self.BLOCK_TOKENS, 2 * self.HEAD_DIM, device="meta")]
        self.assertTrue(worker_side.Layers(caches, shape, 1, self.BLOCK_TOKENS, direct=False).staged)
        with self.assertRaisesRegex(MillraceError, "needs an NVIDIA GPU; the KV cache is on meta"):
            worker_side.Layers(caches, shape, 1, self.BLOCK_TOKENS, direct=True)

    def test_nothing_is_pulled_into_blocks_that_vllm_is_not_done_with(self):
        self.state = worker_side._LoadState(mock.Mock())
        pull, done = self.pull, []

        def pull_once_done(*args, **kwargs):
            done.append(self.state.blocks_free.synchronize.called)
            return pull(*args, **kwargs)
        with mock.patch.object(self, "pull", pull_once_done):
            self.landed(torch.float32, staged=False)
        self.assertEqual(done, [True, True])

    def test_every_way_into_vllms_blocks_brings_what_the_codes_stand_for(self):
        for dtype in torch.bfloat16, torch.float16, torch.float32:
            for staged in False, True:
                with self.subTest(dtype=dtype, staged=staged):
                    caches, packed = self.landed(dtype, staged)
                    for layer, cache in enumerate(caches):
                        blocks = cache.view(self.NUM_BLOCKS, self.BLOCK_TOKENS, 2, self.HEAD_DIM)
                        for token in range(self.FIRST_TOKEN, self.NUM_TOKENS):
                            at = token - self.FIRST_TOKEN
                            expected = [[torch.tensor(self.e4m3(int(code)) * self.SCALES[layer][half], dtype=torch.float32)
                                         for code in self.codes[layer, half, 1, token]] for half in range(2)]
                            found = blocks[self.BLOCK_IDS[at // self.BLOCK_TOKENS], at % self.BLOCK_TOKENS]
                            self.assertTrue(torch.equal(found, torch.tensor(expected).to(dtype)), f"layer {layer}, token {token}")
                        untouched = [block for block in range(self.NUM_BLOCKS) if block not in self.BLOCK_IDS]
                        self.assertTrue(bool((blocks[untouched] == self.MARK).all()), f"layer {layer}")
                        self.assertEqual(sorted(id for its_layer, ids in packed for id in ids if its_layer == layer), [4, 5, 10, 14, 15])



class DestinationTest(unittest.TestCase):
    """Which memory a pull names, by where its tensors are."""

    @staticmethod
    def view(kind, index=None):
        return types.SimpleNamespace(data_ptr=lambda: 4096, element_size=lambda: 2, shape=(4, 1, 16, 8), stride=lambda: (128, 128, 8, 1),
                                     dtype=torch.bfloat16, device=types.SimpleNamespace(type=kind, index=index))

    def memory(self, *views):
        client = Client.__new__(Client)
        client._lib, client._handle = mock.Mock(), None
        client.pull(types.SimpleNamespace(num_tokens=16, _handle=None), [(view, view) for view in views], [0], timeout_s=1)
        return client._lib.new.call_args.args[3]._obj.memory

    def test_it_is_the_hosts_or_a_gpus(self):
        self.assertEqual(self.memory(self.view("cpu")), 0)
        self.assertEqual(self.memory(self.view("cuda", 0), self.view("cuda", 0)), 1)
        self.assertEqual(self.memory(self.view("cuda", 5)), 6)

    def test_of_several_or_of_one_that_is_not_known_nothing_is_pulled(self):
        for views, complaint in ((self.view("cpu"), self.view("cuda", 0)), "several devices"), ((self.view("xpu", 0),), "destination in the memory of"):
            with self.subTest(complaint), self.assertRaisesRegex(MillraceError, complaint):
                self.memory(*views)


class ManifestTest(unittest.TestCase):
    def test_a_cache_that_is_kept_in_part_is_refused(self):
        side = scheduler_side()
        self.addCleanup(side.close)
        manifest = types.SimpleNamespace(num_layers=5, num_kv_heads=2, head_dim=128, dtype="bfloat16", request_id="ours", lease_id="lease", num_tokens=2048,
                                         is_partial=False)
        remote = _Remote(types.SimpleNamespace(manifest=lambda: manifest), 0.0, "ours", "lease")
        request = types.SimpleNamespace(num_prompt_tokens=2048)
        self.assertIs(side._take_manifest(remote, request), manifest)
        manifest.dtype = "float8_e4m3"
        self.assertIs(side._take_manifest(remote, request), manifest)
        manifest.is_partial = True
        with self.assertRaisesRegex(MillraceError, r"unsupported: the cache of request 'ours' is kept in part \(kv_budget\)"):
            side._take_manifest(remote, request)


class TraceTest(unittest.TestCase):
    HEADERS = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}

    def test_vllms_request_has_the_headers_of_its_trace(self):
        from vllm import SamplingParams
        from vllm.v1.request import Request
        request = Request("vllms", [1, 2], SamplingParams(max_tokens=1), None, trace_headers={**self.HEADERS, "x-other": "1"})
        self.assertEqual(tracing.trace_headers(request), self.HEADERS)
        self.assertEqual(tracing.trace_headers(Request("vllms", [1, 2], SamplingParams(max_tokens=1), None)), {})

    def test_a_prefill_is_posted_as_a_part_of_it(self):
        for given, sent in (self.HEADERS, self.HEADERS["traceparent"]), (None, None):
            side = scheduler_side()
            self.addCleanup(side.close)
            request = prompt_request()
            request.trace_headers = given
            with mock.patch.object(Coordinator, "connect") as connect:
                connect.return_value.getresponse.return_value.status = 503
                connect.return_value.getresponse.return_value.read.return_value = b"{}"
                stream = side._coordinator.prefill("fixture", [0], trace_headers=tracing.trace_headers(request))
                stream.ended.wait(60)
            headers = connect.return_value.request.call_args.args[3]
            self.assertEqual(headers.get("traceparent"), sent)

    def test_a_pull_is_a_part_of_it_too(self):
        from opentelemetry.trace import StatusCode, get_current_span
        with mock.patch.object(tracing.trace, "get_tracer") as tracer:
            tracing.record_pull({}, 1, 2, {})
            tracer.assert_not_called()
            tracing.record_pull(self.HEADERS, 1, 2, {"millrace.num_tokens": 5}, "corrupt")
        call = tracer.return_value.start_span.call_args
        parent = get_current_span(call.kwargs["context"]).get_span_context()
        self.assertEqual((f"{parent.trace_id:032x}", f"{parent.span_id:016x}"), tuple(self.HEADERS["traceparent"].split("-")[1:3]))
        self.assertEqual((call.kwargs["start_time"], call.kwargs["attributes"]), (1, {"millrace.num_tokens": 5}))
        span = tracer.return_value.start_span.return_value
        span.set_status.assert_called_once_with(StatusCode.ERROR)
        span.set_attribute.assert_called_once_with("error.type", "corrupt")
        span.end.assert_called_once_with(2)

    def test_without_opentelemetry_nothing_is_recorded(self):
        with mock.patch.object(tracing, "trace", None):
            tracing.record_pull(self.HEADERS, 1, 2, {})


class EndingsTest(unittest.TestCase):
    def calls_after(self, how, lease_id="", failure=None):
        side = scheduler_side()
        prefill = side._coordinator = FakePrefill()
        request = types.SimpleNamespace(request_id="vllms", num_prompt_tokens=2048, cache_salt=None)
        side._remotes["vllms"] = _Remote(prefill, 0.0, "ours", lease_id, request=request)
        if failure:
            side.failed({"vllms": failure})
        how(side, request)
        side.close()
        return prefill.calls

    @staticmethod
    def received(side, request):
        side.received([request.request_id])

    @staticmethod
    def finished(side, request):
        side.finished(request)

    def test_what_was_pulled_before_the_prefill_ended_is_released_and_not_cancelled(self):
        self.assertEqual(self.calls_after(self.received), ["wait", "end ours", "close"])

    def test_a_routers_lease_is_released_once_it_can_be(self):
        self.assertEqual(self.calls_after(self.received, "lease"), ["wait", "release ours lease", "close"])

    def test_what_nobody_waits_for_is_cancelled_at_once(self):
        self.assertEqual(self.calls_after(self.finished), ["end ours", "close"])
        self.assertEqual(self.calls_after(self.received, failure=("corrupt", "rank 0")), ["end ours", "close"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
