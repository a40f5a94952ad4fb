#!/usr/bin/env python3
"""What MillraceConnector decides without an engine: options, versions, models; and its place in vLLM's interface."""
import inspect
import types
import unittest

import vllm
from millrace_kv._library import MillraceError
from millrace_kv.connector import MillraceConnector, check_vllm_version
from millrace_kv.messages import LoadFailures
from millrace_kv.model_shape import ModelShape
from millrace_kv.options import Options
from millrace_kv.scheduler_side import SchedulerSide, _Remote

GIVEN = {"coordinator": "host:8000"}
SHAPE = ModelShape(num_layers=5, num_kv_heads=2, head_dim=128, dtype="bfloat16", vocab_size=2048)


class OptionsTest(unittest.TestCase):
    def test_what_is_not_said_has_a_default(self):
        self.assertEqual(Options.parse(GIVEN), Options(coordinator="host:8000"))
        self.assertEqual(Options.parse({**GIVEN, "min_recall": 1, "reuse": True}).min_recall, 1.0)

    def test_what_is_wrong_is_named(self):
        for config, name in (({}, "coordinator"), ({**GIVEN, "min_token": 5}, "min_token"), ({**GIVEN, "min_tokens": "5"}, "min_tokens"),
                             ({**GIVEN, "min_tokens": True}, "min_tokens"), ({**GIVEN, "reuse": 1}, "reuse"), ({**GIVEN, "transport": "rdma"}, "transport"),
                             ({**GIVEN, "lease_ms": 0}, "lease_ms")):
            with self.subTest(config=config), self.assertRaisesRegex(ValueError, name):
                Options.parse(config)


class VersionTest(unittest.TestCase):
    def test_known_versions_pass_and_others_only_when_told(self):
        for version in "0.32.0", "0.33.0", "0.33.1+cu130", "0.32.0rc1":
            check_vllm_version(version, Options.parse(GIVEN))
        for version in "0.31.0", "0.34.0", "0.3.2", "dev", "1.32.0":
            with self.subTest(version=version), self.assertRaisesRegex(RuntimeError, f"0.32 and 0.33; this is {version}"):
                check_vllm_version(version, Options.parse(GIVEN))
            check_vllm_version(version, Options.parse({**GIVEN, "any_vllm_version": True}))

    def test_the_connector_overrides_only_what_this_vllm_has(self):
        for name, member in vars(MillraceConnector).items():
            if name.startswith("_") or not inspect.isfunction(member):
                continue
            theirs = next((vars(base)[name] for base in MillraceConnector.__mro__[1:] if name in vars(base)), None)
            self.assertIsNotNone(theirs, f"{name} in vLLM {vllm.__version__}")
            self.assertEqual(list(inspect.signature(member).parameters), list(inspect.signature(theirs).parameters), name)
        self.assertFalse(inspect.isabstract(MillraceConnector))


class ModelTest(unittest.TestCase):
    def test_another_model_is_told_by_its_numbers(self):
        same = {"num_layers": 5, "num_kv_heads": 2, "head_dim": 128, "dtype": "bfloat16"}
        self.assertEqual(SHAPE.difference_to_manifest(types.SimpleNamespace(**same)), "")
        for name, other in ("num_layers", 6), ("num_kv_heads", 4), ("head_dim", 64), ("dtype", "float32"), ("dtype", "float8_e4m3"):
            difference = SHAPE.difference_to_manifest(types.SimpleNamespace(**{**same, name: other}))
            self.assertEqual(difference, f"{name} {other} and not {same[name]}")
        offer = {"num_layers": 5, "dtype": "bfloat16", "vocab_size": 2048}
        self.assertEqual(SHAPE.difference_to_offer(offer), "")
        self.assertEqual(SHAPE.difference_to_offer({**offer, "vocab_size": 32000}), "vocab_size 32000 and not 2048")


class FailuresTest(unittest.TestCase):
    def test_of_several_ranks_the_first_is_heard(self):
        one = LoadFailures({"a": ("peer_lost", "rank 0")})
        other = LoadFailures({"a": ("peer_lost", "rank 1"), "b": ("corrupt", "rank 1")})
        self.assertEqual(one.aggregate(other).reasons, {"a": ("peer_lost", "rank 0"), "b": ("corrupt", "rank 1")})

    def test_errors_say_their_code(self):
        self.assertEqual(str(MillraceError("peer_lost", "rank 0")), "peer_lost: rank 0")


class FakePrefill:
    """Events and coordinator of one prefill: what was done with them, in order. It ends when somebody waits for that."""

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


def scheduler_side():
    shape = {"get_total_num_hidden_layers": 5, "get_total_num_kv_heads": 2, "get_head_size": 128, "get_vocab_size": 2048}
    model = types.SimpleNamespace(dtype="torch.bfloat16", served_model_name="fixture",
                                  **{name: lambda value=value: value for name, value in shape.items()})
    return SchedulerSide(Options.parse(GIVEN), types.SimpleNamespace(model_config=model), 16)


class ManifestTest(unittest.TestCase):
    def test_a_cache_that_is_kept_in_part_is_refused(self):
        side = scheduler_side()
        self.addCleanup(side.close)
        manifest = types.SimpleNamespace(num_layers=5, num_kv_heads=2, head_dim=128, dtype="bfloat16", request_id="ours", lease_id="lease", num_tokens=2048,
                                         is_partial=False)
        remote = _Remote(types.SimpleNamespace(manifest=lambda: manifest), 0.0, "ours", "lease")
        request = types.SimpleNamespace(num_prompt_tokens=2048)
        self.assertIs(side._take_manifest(remote, request), manifest)
        manifest.is_partial = True
        with self.assertRaisesRegex(MillraceError, r"unsupported: the cache of request 'ours' is kept in part \(kv_budget\)"):
            side._take_manifest(remote, request)


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
