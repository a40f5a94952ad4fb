#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM, in this process and on a CPU, with MillraceConnector and a real group of TP 2 x CP 2: right answers, one computed token per prompt, and
right answers after every kind of trouble. One test has a group whose cache is in 8-bit floats. MILLRACE_VLLM_TP: vLLM's own ranks (default 1)."""
import contextlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import unittest
from collections import Counter

TP = int(os.environ.get("MILLRACE_VLLM_TP", "1"))
HERE = os.path.dirname(os.path.abspath(__file__))
# Worker processes load the connector from this folder as well.
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
sys.path[:0] = [HERE, os.path.join(os.environ["MILLRACE_SOURCE_DIR"], "tests/e2e")]
# vLLM's worker processes import this file again.
if "MILLRACE_TROUBLE_DIRECTORY" not in os.environ:
    TROUBLE = tempfile.TemporaryDirectory(prefix="millrace-engines-")
    os.environ["MILLRACE_TROUBLE_DIRECTORY"] = TROUBLE.name
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1",
                  VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"), VLLM_NO_USAGE_STATS="1",
                  VLLM_WORKER_MULTIPROC_METHOD="spawn", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS=str(max(1, (os.cpu_count() or 2) // TP)))

from service import MODEL_DIR, Service, ServiceTestCase, make_prompt, wait_until  # noqa: E402

# Without this option a group takes the type that is faster here, which need not be the engine's.
GROUP = "--dtype", "bfloat16"
MIN_TOKENS = 1000
NUM_LAYERS = 5
NEW_TOKENS = 6  # the record's four digits and two more
RETRY_AFTER_S = 0.5
# The scales of K and of V by layer: what their largest magnitudes need on prompts like these, as calibration leaves them in a checkpoint.
SCALES = (0.05, 0.03), (0.02, 0.01), (0.04, 0.015), (0.04, 0.03), (0.06, 0.06)
LONG = 8192 if TP == 1 else 4096  # long enough for a test to act during its prefill


def prompt(num_tokens, seed):
    return make_prompt(num_tokens, seed)["prompt_token_ids"]


def scaled_model(directory):
    """Makes a checkpoint of the fixture that has scales for its KV cache."""
    import torch
    from safetensors.torch import load_file, save_file
    model = os.path.join(directory, "scaled", "fixture")
    shutil.copytree(MODEL_DIR, model)
    tensors = load_file(os.path.join(MODEL_DIR, "model.safetensors"))
    for layer, scales in enumerate(SCALES):
        tensors.update({f"model.layers.{layer}.self_attn.{name}_scale": torch.tensor(scale) for name, scale in zip("kv", scales)})
    save_file(tensors, os.path.join(model, "model.safetensors"))
    return model


# For tests in which a second rank changes nothing.
once = unittest.skipIf(TP > 1, "with one rank only")


@contextlib.contextmanager
def trouble(name):
    path = os.path.join(os.environ["MILLRACE_TROUBLE_DIRECTORY"], name)
    open(path, "w").close()
    try:
        yield
    finally:
        os.remove(path)


class Engine:
    """vLLM run step by step, with a count of the tokens that its scheduler had computed."""

    def __init__(self, coordinator, **options):
        from vllm import EngineArgs, LLMEngine
        self.engine = LLMEngine.from_engine_args(EngineArgs(
            model=MODEL_DIR, skip_tokenizer_init=True, enforce_eager=True, max_model_len=16384 + 64, max_num_batched_tokens=4096, max_num_seqs=8,
            tensor_parallel_size=TP, distributed_executor_backend="mp" if TP > 1 else "uni", disable_log_stats=False,
            kv_transfer_config={"kv_connector": "TroubleConnector", "kv_connector_module_path": "trouble_connector", "kv_role": "kv_consumer",
                                "kv_connector_extra_config": {"coordinator": coordinator, "min_tokens": MIN_TOKENS, "retry_after_s": RETRY_AFTER_S, "only_if_sooner": False,
                                                              # Staging memory for two pieces of a few blocks.
                                                              "staging_bytes": 1 << 20,
                                                              **options}}))
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self.connector = self.scheduler.get_kv_connector()
        self.scheduled = Counter()
        self._schedule, self.scheduler.schedule = self.scheduler.schedule, self._count
        self._last_id = 0

    def _count(self, *arguments, **options):
        output = self._schedule(*arguments, **options)
        self.scheduled.update(output.num_scheduled_tokens)
        return output

    def add(self, tokens, params=None):
        from vllm import SamplingParams
        self._last_id += 1
        request_id = f"test-{self._last_id}"
        extra = None if params is None else {"kv_transfer_params": {"millrace": params}}
        self.engine.add_request(request_id, {"prompt_token_ids": tokens}, SamplingParams(
            temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False, extra_args=extra))
        return request_id

    def finish(self, timeout_s=240):
        """Returns {request id: token ids} of all requests that were added."""
        answers, deadline = {}, time.monotonic() + timeout_s
        while self.engine.has_unfinished_requests() or self.scheduler.has_finished_requests():
            for output in self.engine.step():
                if output.finished:
                    answers[output.request_id] = list(output.outputs[0].token_ids)
            assert time.monotonic() < deadline, f"no answer within {timeout_s} s"
        return answers

    def step_until(self, what, condition, timeout_s=120):
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.engine.step()
            assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"

    def answer(self, tokens, params=None):
        """Returns (token ids, the number of the prompt's tokens that vLLM computed)."""
        before = self.total_scheduled()
        self.add(tokens, params)
        (answer,) = self.finish().values()
        # Each new token but the first is computed from the one before it.
        return answer, self.total_scheduled() - before - (NEW_TOKENS - 1)

    def total_scheduled(self):
        return sum(self.scheduled.values())

    def num_loading(self):
        return sum(remote.request is not None for remote in self.connector._scheduler._remotes.values())

    def free_blocks(self):
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    @contextlib.contextmanager
    def only_free_blocks(self, count):
        """Holds all other blocks, as other users' requests would."""
        pool = self.scheduler.kv_cache_manager.block_pool
        held = pool.get_new_blocks(pool.get_num_free_blocks() - count)
        try:
            yield
        finally:
            pool.free_blocks(held)

    def prompt_tokens_by_source(self):
        from vllm.v1.metrics.reader import get_metrics_snapshot
        return {metric.labels["source"]: metric.value for metric in get_metrics_snapshot() if metric.name == "vllm:prompt_tokens_by_source"}


class VllmTest(ServiceTestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.group = cls.service.start_group(*GROUP, cp=2)
        began = time.monotonic()
        cls.vllm = Engine(f"127.0.0.1:{cls.service.http_port}")
        cls.addClassCleanup(cls.vllm.engine.engine_core.shutdown)
        print(f"vLLM started in {time.monotonic() - began:.0f} s", flush=True)
        cls.all_blocks = cls.vllm.free_blocks()
        cls.own_answers = {}

    def setUp(self):
        if not self.service.ranks():
            type(self).group = self.service.start_group(*GROUP, cp=2)
        self.addCleanup(self.show_logs_of_failure, self.service)

    def tearDown(self):
        """Checks that the test has left no block, request or lease behind."""
        self.assertEqual(self.vllm.free_blocks(), self.all_blocks)
        self.assertEqual((self.vllm.connector._scheduler._remotes, self.vllm.connector._scheduler._left), ({}, set()))
        wait_until("the end of all leases", lambda: self.metric("millrace_active_leases") == 0, 30)

    def end_group(self):
        self.group.terminate()
        self.group.wait(60)
        self.service.groups.remove(self.group)
        wait_until("no group", lambda: not self.service.ready(), 30)

    def metric(self, name):
        text = self.service.get("/metrics")[2]
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)

    def done_prefills(self):
        text = self.service.get("/metrics")[2]
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line.startswith("millrace_prefill_requests_total") and 'outcome="done"' in line)

    def own(self, tokens):
        """vLLM's answer from its own prefill."""
        answer, computed = self.vllm.answer(tokens, params=False)
        self.assertGreater(computed, 0)
        return answer

    def test_answers_are_vllms_own_and_one_token_of_each_prompt_is_computed(self):
        # Some lengths are multiples of pages (64) and blocks, some are not.
        for num_tokens in (1024, 1500, 4096, 6001) if TP == 1 else (1500, 4096):
            with self.subTest(num_tokens=num_tokens):
                record = make_prompt(num_tokens, seed=num_tokens)
                before = self.vllm.prompt_tokens_by_source()
                answer, computed = self.vllm.answer(record["prompt_token_ids"])
                after = self.vllm.prompt_tokens_by_source()
                self.assertEqual(computed, 1)
                self.assertEqual(after["external_kv_transfer"] - before.get("external_kv_transfer", 0), num_tokens)
                self.assertEqual(answer, self.own(record["prompt_token_ids"]))
                self.assertEqual(answer[:4], record["answer_token_ids"])

    def test_pulls_through_other_memory_bring_the_same(self):
        """Pulls through staging memory, as on a GPU, in pieces that end within a cache."""
        record = make_prompt(3001, seed=12)
        with trouble("staged"):
            answer, computed = self.vllm.answer(record["prompt_token_ids"])
        self.assertEqual(computed, 1)
        self.assertEqual(answer, self.own(record["prompt_token_ids"]))

    def test_zeroed_pages_give_another_answer(self):
        """The control: answers come from what was pulled."""
        record = make_prompt(2048, seed=11)
        with trouble("zero"):
            answer, computed = self.vllm.answer(record["prompt_token_ids"])
        self.assertEqual(computed, 1)
        self.assertNotEqual(answer[:4], record["answer_token_ids"])
        self.assertEqual(self.vllm.answer(record["prompt_token_ids"])[0][:4], record["answer_token_ids"])

    def test_a_cache_in_8_bit_floats_comes_as_what_it_stands_for(self):
        self.end_group()
        type(self).group = self.service.start_group(*GROUP, "--model", scaled_model(self.service.directory.name), "--kv-cache-dtype", "fp8", cp=2)
        self.addCleanup(self.end_group)  # the next test starts the usual group
        for num_tokens in (1500, 3001, 4096) if TP == 1 else (1500,):
            record = make_prompt(num_tokens, seed=num_tokens)
            for staged in (False, True) if TP == 1 else (False,):
                with self.subTest(num_tokens=num_tokens, staged=staged), trouble("staged") if staged else contextlib.nullcontext():
                    answer, computed = self.vllm.answer(record["prompt_token_ids"])
                    self.assertEqual((answer[:4], computed), (record["answer_token_ids"], 1))
        # The control: answers do not come from the unscaled codes.
        with trouble("unscaled"):
            answer, computed = self.vllm.answer(record["prompt_token_ids"])
        self.assertEqual(computed, 1)
        self.assertNotEqual(answer[:4], record["answer_token_ids"])

    def test_a_pulled_request_that_vllm_preempts_ends_with_the_right_answer(self):
        block_tokens = self.vllm.scheduler.cache_config.block_size
        # The first new token goes into the last block. The second needs another block, and none is free while the other request runs.
        num_tokens = -(-1500 // block_tokens) * block_tokens - 1
        blocks = (num_tokens + 1) // block_tokens
        records = [make_prompt(num_tokens, seed=71 + n) for n in range(2)]
        preempted = []
        preempt = self.vllm.scheduler._preempt_request

        def note(request, *arguments, **options):
            preempted.append(request.request_id)
            return preempt(request, *arguments, **options)
        self.vllm.scheduler._preempt_request = note
        self.addCleanup(setattr, self.vllm.scheduler, "_preempt_request", preempt)
        with self.vllm.only_free_blocks(2 * blocks):
            with trouble("hold"):
                requests = [self.vllm.add(record["prompt_token_ids"]) for record in records]
                self.vllm.step_until("both loads", lambda: self.vllm.num_loading() == 2)
            answers = self.vllm.finish()
        self.assertTrue(preempted)
        # After the four digits, tokens may be equally likely in bfloat16, and another prefill or another processor may choose another one.
        self.assertEqual([answers[request][:4] for request in requests], [record["answer_token_ids"] for record in records])

    def test_prompts_at_once_get_their_own_answers(self):
        records = [make_prompt(1200 + 333 * n, seed=20 + n) for n in range(6)]
        before = self.vllm.total_scheduled()
        done = self.done_prefills()
        expected = {self.vllm.add(record["prompt_token_ids"]): record["answer_token_ids"] for record in records}
        answers = self.vllm.finish()
        self.assertEqual(self.vllm.total_scheduled() - before, len(records) * NEW_TOKENS)
        # Pulling them during their prefills does not cancel the prefills.
        wait_until("the end of all prefills", lambda: self.done_prefills() - done == len(records), 30)
        self.assertEqual({request_id: answer[:4] for request_id, answer in answers.items()}, expected)

    @once
    def test_short_prompts_and_those_that_are_cached_here_are_vllms(self):
        requests = self.metric("millrace_prefill_requests_total")
        short, long = prompt(MIN_TOKENS - 1, seed=31), prompt(2048, seed=32)
        self.assertEqual(self.vllm.answer(short)[1], len(short))
        self.assertEqual(self.vllm.answer(long, params=False)[1], len(long))
        # All but the last block are cached; it is computed for its last token.
        self.assertLessEqual(self.vllm.answer(long)[1], 128)
        self.assertEqual(self.metric("millrace_prefill_requests_total"), requests)

    @once
    def test_a_prompt_goes_to_whom_it_takes_less_time(self):
        """The coordinator's forecasts are its own; what vLLM takes is given here."""
        from millrace_kv import Coordinator
        from millrace_kv.when_it_pays import WhenItPays
        side, coordinator = self.vllm.connector._scheduler, Coordinator(f"127.0.0.1:{self.service.http_port}")
        for seed in itertools.count(340):
            if coordinator.forecast("fixture", prompt(2048, seed))["is_learnt"]:
                break
            self.assertLess(seed, 360)
            posted = coordinator.prefill("fixture", prompt(2048, seed))
            self.assertTrue(posted.ended.wait(60))
            coordinator.end(posted.request_id)
        taken, take_counts = Counter(), side.take_counts

        def take():  # as vLLM does too, after each step
            counts = take_counts()
            taken.update(counts)
            return counts
        side.take_counts = take
        self.addCleanup(delattr, side, "take_counts")
        self.addCleanup(setattr, side, "_pays", None)
        for seconds_a_token, outcome, computed_tokens in (1e-9, "sooner", 2048), (1e3, "pulled", 1):
            side._pays = WhenItPays(10000, MIN_TOKENS)
            side._pays._rates.observe(2048, seconds_a_token)
            record = make_prompt(2048, seed=361 + computed_tokens)
            take()
            taken.clear()
            answer, computed = self.vllm.answer(record["prompt_token_ids"])
            take()
            self.assertEqual((answer[:4], computed, taken), (record["answer_token_ids"], computed_tokens, {outcome: 1}))
            self.assertEqual(side._timed, {})
            # vLLM's own prompt was timed, and Millrace's was compared with the forecast.
            self.assertEqual((side._pays._own, len(side._pays._delays._of)), ({}, outcome == "pulled"))

    @once
    def test_pulled_blocks_are_nobody_elses(self):
        tokens = prompt(2048, seed=33)
        self.assertEqual(self.vllm.answer(tokens)[1], 1)
        self.assertEqual(self.vllm.answer(tokens, params=False)[1], len(tokens))

    @once
    def test_a_routers_prefill_is_pulled_and_another_prompts_is_not(self):
        from millrace_kv import Coordinator
        from millrace_kv.coordinator import prompt_digest
        record = make_prompt(1500, seed=41)
        tokens = record["prompt_token_ids"]
        posted = Coordinator(f"127.0.0.1:{self.service.http_port}").prefill("fixture", tokens)
        self.assertTrue(posted.ended.wait(60))
        requests = self.metric("millrace_prefill_requests_total")
        params = {"request_id": posted.request_id, "lease_id": posted.result().lease_id, "prompt_sha256": prompt_digest(tokens)}
        other = make_prompt(1500, seed=42)
        another = tokens[::-1]
        foreign = {**params, "lease_id": "0" * 32, "prompt_sha256": prompt_digest(another)}
        for wrong in params, foreign, {"request_id": posted.request_id}:
            self.assertGreater(self.vllm.answer(another, wrong)[1], 1)
        answer, computed = self.vllm.answer(other["prompt_token_ids"], params)
        self.assertEqual((answer[:4], computed), (other["answer_token_ids"], len(other["prompt_token_ids"])))
        answer, computed = self.vllm.answer(tokens, params)
        self.assertEqual((answer[:4], computed), (record["answer_token_ids"], 1))
        self.assertEqual(self.metric("millrace_prefill_requests_total"), requests)

    @once
    def test_a_routers_prefill_is_pulled_while_it_runs(self):
        from millrace_kv import Coordinator
        from millrace_kv.coordinator import prompt_digest
        record = make_prompt(LONG, seed=44)
        tokens = record["prompt_token_ids"]
        posted = Coordinator(f"127.0.0.1:{self.service.http_port}").prefill("fixture", tokens)
        params = {"request_id": posted.request_id, "lease_id": posted.manifest(60).lease_id, "prompt_sha256": prompt_digest(tokens)}
        answer, computed = self.vllm.answer(tokens, params)
        self.assertEqual((answer[:4], computed), (record["answer_token_ids"], 1))
        self.assertTrue(posted.ended.wait(60))
        posted.check()
        # tearDown checks that no lease is left.

    @once
    def test_a_router_that_knows_openai_only_gets_one_computed_token(self):
        """The test is the router: it posts the prompt to Millrace and passes the answer's parameters on unchanged."""
        record = make_prompt(1500, seed=43)
        tokens = record["prompt_token_ids"]
        status, _, answer = self.service.request("POST", "/v1/completions", {
            "model": "fixture", "prompt": tokens, "max_tokens": 1, "max_completion_tokens": 1, "stream": False, "temperature": 0,
            "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
                                   "remote_host": None, "remote_port": None}})
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["choices"][0]["token_ids"], record["answer_token_ids"][:1])
        requests = self.metric("millrace_prefill_requests_total")
        generated, computed = self.vllm.answer(tokens, answer["kv_transfer_params"]["millrace"])
        self.assertEqual((generated, computed), (self.own(tokens), 1))
        self.assertEqual(generated[:4], record["answer_token_ids"])
        self.assertEqual(self.metric("millrace_prefill_requests_total"), requests)

    def test_a_group_that_is_killed_in_the_middle_costs_time_only(self):
        record = make_prompt(LONG, seed=51)

        def kill():
            wait_until("a layer", lambda: self.running_layers() >= 1, 120)
            os.killpg(self.group.pid, signal.SIGKILL)
            for pid in self.service.ranks().values():
                os.kill(pid, signal.SIGKILL)
        killer = threading.Thread(target=kill)
        killer.start()
        tried_again = self.vllm.connector._scheduler._shut_until
        answer, computed = self.vllm.answer(record["prompt_token_ids"])
        killer.join()
        self.assertEqual(answer[:4], record["answer_token_ids"])
        self.assertEqual(computed, LONG)
        # The coordinator still runs and may have other groups.
        self.assertEqual(self.vllm.connector._scheduler._shut_until, tried_again)

    def running_layers(self):
        return max((remote.events.feed.layers_ready for remote in list(self.vllm.connector._scheduler._remotes.values())), default=0)

    def test_a_group_that_is_killed_before_the_pull_costs_time_only(self):
        record = make_prompt(2048, seed=52)
        with trouble("hold"):
            self.vllm.add(record["prompt_token_ids"])
            self.vllm.step_until("the end of the prefill", lambda: self.running_layers() == NUM_LAYERS)
            self.vllm.step_until("the load", self.vllm.num_loading)
            os.killpg(self.group.pid, signal.SIGKILL)
            for pid in self.service.ranks().values():
                os.kill(pid, signal.SIGKILL)
        (answer,) = self.vllm.finish().values()
        self.assertEqual(answer[:4], record["answer_token_ids"])

    @once
    def test_without_a_coordinator_vllm_goes_on_alone_and_comes_back(self):
        record = make_prompt(2048, seed=53)
        self.service.coordinator.kill()
        self.service.coordinator.wait(20)
        answer, computed = self.vllm.answer(record["prompt_token_ids"])
        self.assertEqual((answer[:4], computed), (record["answer_token_ids"], 2048))
        os.remove(self.service._ports_path)
        self.service._start_coordinator()
        wait_until("a ready group", lambda: self.service.get("/ready")[0] == 200, 60)
        seeds = itertools.count(540)

        def pulled():
            # vLLM keeps what it computed itself and would not ask for it again, so each try has a new prompt.
            back = make_prompt(2048, seed=next(seeds))
            answer, computed = self.vllm.answer(back["prompt_token_ids"])
            self.assertEqual(answer[:4], back["answer_token_ids"])
            return computed == 1
        wait_until("a pull", pulled, 30)

    @once
    def test_a_coordinator_that_dies_in_the_middle_costs_time_only(self):
        record = make_prompt(LONG, seed=55)

        def kill():
            wait_until("a layer", lambda: self.running_layers() >= 1, 120)
            self.service.restart_coordinator()
        killer = threading.Thread(target=kill)
        killer.start()
        answer, _ = self.vllm.answer(record["prompt_token_ids"])
        killer.join()
        self.assertEqual(answer[:4], record["answer_token_ids"])
        wait_until("a ready group", lambda: self.service.get("/ready")[0] == 200, 60)

    def test_aborted_requests_leave_nothing_in_any_phase(self):
        phases = {"before the manifest": lambda: bool(self.vllm.connector._scheduler._remotes), "while it loads": self.vllm.num_loading,
                  "after a layer": lambda: self.running_layers() >= 2}
        for phase, reached in phases.items():
            with self.subTest(phase=phase):
                request_id = self.vllm.add(prompt(4096, seed=61))
                self.vllm.step_until(phase, reached)
                self.vllm.engine.abort_request([request_id])
                self.assertEqual(self.vllm.finish(), {})
                self.assertEqual(self.vllm.free_blocks(), self.all_blocks)
        record = make_prompt(1500, seed=62)
        self.assertEqual(self.vllm.answer(record["prompt_token_ids"]), (self.own(record["prompt_token_ids"]), 1))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
