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
        for name, other in ("num_layers", 6), ("num_kv_heads", 4), ("head_dim", 64), ("dtype", "float32"):
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
