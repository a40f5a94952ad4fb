#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts as text: a real coordinator, ranks and tokenizers, with Hugging Face's library in this process as the reference."""
import contextlib
import hashlib
import http.client
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

from service import BIN_DIR, MODEL_DIR, PATIENCE_S, InBackground, Service, ServiceTestCase, make_prompt, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import pypi  # noqa: E402

try:
    PACKAGES = pypi.install(os.path.join(HERE, "tokenizer-requirements.txt"), os.path.join(HERE, "..", "..", "build", "e2e-tokenizer"))
except pypi.Unavailable as why:
    pypi.exit_unavailable(why)
sys.path.append(PACKAGES)
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

SCRATCH = tempfile.TemporaryDirectory(prefix="millrace-text-")
SHORT = make_prompt(1024, seed=1)


def python_with_tokenizers():
    path = os.path.join(SCRATCH.name, "python-with-tokenizers")
    with open(path, "w") as file:
        file.write(f"#!/bin/sh\nPYTHONPATH='{PACKAGES}' exec {sys.executable} \"$@\"\n")
    os.chmod(path, 0o755)
    return path


PYTHON = python_with_tokenizers()


def directory_of(name, tokenizer):
    path = os.path.join(SCRATCH.name, name)
    os.makedirs(path)
    tokenizer.save(os.path.join(path, "tokenizer.json"))
    return path


def byte_level(vocab_size):
    """A tokenizer like GPT-2's, Llama 3's and Qwen's: BPE over bytes, trained here."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    source = random.Random(1)
    words = ["".join(source.choice("etaoinshrdlu") for _ in range(source.randint(2, 9))) for _ in range(vocab_size)]
    tokenizer.train_from_iterator([" ".join(words), "日本語 テキスト 😀 ünïcödé " * 20], trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"], show_progress=False))
    # This limit is for other programs; a prompt must not be cut at it.
    tokenizer.enable_truncation(16)
    return tokenizer


def byte_fallback():
    """A tokenizer like Llama 2's and Mistral's: BPE over characters with a blank before each word, bytes for unknown text, and <s> first."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    merges = [("▁", "h"), ("e", "l"), ("l", "o"), ("▁", "w"), ("o", "r"), ("▁w", "or")]
    for token in [*"▁abcdefghijklmnopqrstuvwxyzHW,.", *(first + second for first, second in merges)]:
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    return tokenizer


def options(directory, *more):
    return ["--tokenizer", f"fixture={directory}", "--tokenizer-python", PYTHON, *more]


def digest(token_ids):
    return hashlib.sha256(struct.pack(f"<{len(token_ids)}i", *token_ids)).hexdigest()


def tokenizer_pids(service):
    """Process ids of the tokenizers among the coordinator's children."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            name, fields = file.read().rsplit(")", 1)
            if int(fields.split()[1]) == service.coordinator.pid and name.endswith("(mr-tokenizer"):
                found.append(int(pid))
    return found


class TextTestCase(ServiceTestCase):
    directory = MODEL_DIR
    options = ()

    @classmethod
    def setUpClass(cls):
        cls.library = Tokenizer.from_file(os.path.join(cls.directory, "tokenizer.json"))
        cls.library.no_truncation()
        cls.service = Service(coordinator_options=options(cls.directory, *cls.options))
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group(tp=1)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def complete(self, prompt, **fields):
        return self.service.request("POST", "/v1/completions", {"model": "fixture", "prompt": prompt, "max_tokens": 1, **fields})

    def post(self, path, body, content_type):
        connection = http.client.HTTPConnection("127.0.0.1", self.service.http_port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("POST", path, body, {"Content-Type": content_type})
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def assert_tokens(self, text, **fields):
        """Checks that the tokens of the prompt that was run are the library's."""
        ids = self.library.encode(text, add_special_tokens=fields.get("add_special_tokens", True)).ids
        status, _, answer = self.complete(text, **fields)
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["usage"]["prompt_tokens"], len(ids))
        self.assertEqual(answer["kv_transfer_params"]["millrace"]["prompt_sha256"], digest(ids))


class FixtureTest(TextTestCase):
    """The model answers questions, so one wrong token anywhere would show."""

    def setUp(self):
        self.text = self.library.decode(SHORT["prompt_token_ids"], skip_special_tokens=True)
        self.answer = self.library.decode(SHORT["answer_token_ids"][:1])

    def test_a_completion_of_text_is_that_of_its_tokens(self):
        for prompt in self.text, [self.text], SHORT["prompt_token_ids"]:
            status, _, answer = self.complete(prompt, logprobs=2)
            self.assertEqual(status, 200, answer)
            (choice,) = answer["choices"]
            self.assertEqual((choice["text"], choice["token_ids"]), (self.answer, SHORT["answer_token_ids"][:1]))
            self.assertEqual(choice["logprobs"]["tokens"], [self.answer])
            listed = choice["logprobs"]["top_logprobs"][0]
            self.assertEqual((list(listed)[0], len(listed)), (self.answer, 2))
            self.assertEqual(choice["logprobs"]["token_logprobs"], [listed[self.answer]])
            self.assertEqual(answer["usage"]["prompt_tokens"], 1024)
            self.assertEqual(answer["kv_transfer_params"]["millrace"]["prompt_sha256"], digest(SHORT["prompt_token_ids"]))

    def test_tokens_are_named_by_their_ids_for_who_asks(self):
        _, _, answer = self.complete(self.text, logprobs=1, return_tokens_as_token_ids=True)
        self.assertEqual(answer["choices"][0]["logprobs"]["tokens"], [f"token_id:{SHORT['answer_token_ids'][0]}"])

    def test_a_stream_has_the_text(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.service.http_port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps({"model": "fixture", "prompt": self.text, "stream": True}))
            events = connection.getresponse().read().decode().split("\n\n")
        self.assertEqual(json.loads(events[0].removeprefix("data: "))["choices"][0]["text"], self.answer)

    def test_a_prefill_takes_text_in_json_and_as_a_body(self):
        bodies = [("/v1/prefill", json.dumps({"model": "fixture", "text": self.text}), "application/json"),
                  ("/v1/prefill?model=fixture", self.text, "text/plain; charset=utf-8")]
        for path, body, content_type in bodies:
            status, answer = self.post(path, body, content_type)
            self.assertEqual(status, 200, answer)
            self.assertEqual((answer["num_tokens"], answer["first_token_id"], answer["first_token_text"]),
                             (1024, SHORT["answer_token_ids"][0], self.answer))
            state = self.service.get(f"/v1/prefill/{answer['request_id']}")[2]
            self.assertEqual(state["first_token_text"], self.answer)

    def test_the_client_takes_text_and_shows_it(self):
        path = os.path.join(SCRATCH.name, "prompt.txt")
        with open(path, "w") as file:
            file.write(self.text)
        for prompt in ["--text-file", path], ["--text", self.text]:
            done = subprocess.run([os.path.join(BIN_DIR, "millrace-client"), "--server", f"127.0.0.1:{self.service.http_port}", "prefill",
                                   "--model", "fixture", *prompt], capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            answer = json.loads(done.stdout)
            self.assertEqual((answer["num_tokens"], answer["first_token_text"]), (1024, self.answer))

    def test_special_tokens_are_added_unless_refused(self):
        self.assert_tokens(self.text)
        self.assert_tokens(self.text, add_special_tokens=False)
        for path, body, content_type in (
                ("/v1/prefill", json.dumps({"model": "fixture", "text": self.text, "add_special_tokens": False}), "application/json"),
                ("/v1/prefill?model=fixture&add_special_tokens=false", self.text, "text/plain")):
            self.assertEqual(self.post(path, body, content_type)[1]["num_tokens"], 1023)

    def test_bad_prompts_are_refused_by_name(self):
        for body, content_type, param, why in ((b'{"model":"fixture","prompt":"a\xff"}', "application/json", None, "byte 30: not UTF-8"),
                                               (rb'{"model":"fixture","prompt":"\ud800"}', "application/json", None, "half of a surrogate pair"),
                                               (b'\xef\xbb\xbf{"model":"fixture","prompt":"a"}', "application/json", None, "byte order mark of UTF-8"),
                                               (b'{"model":"fixture","prompt":["a","b"]}', "application/json", "prompt", "several prompts"),
                                               (b'{"model":"fixture","prompt":["a",1]}', "application/json", "prompt", "several prompts"),
                                               (b'{"model":"fixture","prompt":[1,"a"]}', "application/json", "prompt", "several prompts")):
            with self.subTest(body=body):
                status, answer = self.post("/v1/completions", body, content_type)
                self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
                self.assertIn(why, answer["error"]["message"])
        for path, body, content_type, why in (("/v1/prefill?model=fixture", b"a\xffb", "text/plain", "not UTF-8: byte 1 of 3"),
                                              ("/v1/prefill?model=fixture&text=a", b"a", "text/plain", "the prompt is the body"),
                                              ("/v1/prefill", b'{"model":"fixture","text":"a","prompt_token_ids":[1]}', "application/json",
                                               "not both")):
            status, answer = self.post(path, body, content_type)
            self.assertEqual((status, answer["error"]["param"]), (400, "text"), answer)
            self.assertIn(why, answer["error"]["message"])
        status, _, answer = self.complete("", add_special_tokens=False)
        self.assertEqual((status, answer["error"]["param"]), (400, "prompt"))
        self.assertIn("no tokens", answer["error"]["message"])
        status, _, answer = self.complete("a" * (16 * 2**20 + 1))
        self.assertEqual((status, answer["error"]["param"]), (413, "prompt"))
        self.assertEqual(self.service.request("POST", "/v1/completions", {"model": "gpt", "prompt": "a"})[0], 404)

    def test_health_and_metrics_tell_of_the_tokenizers(self):
        self.complete(self.text)
        self.assertEqual(self.service.get("/health")[2]["tokenizers"]["fixture"].keys(), {"ready", "processes", "replaced"})
        metrics = self.service.get("/metrics")[2]
        self.assertIn('millrace_tokenizer_ready_processes{model="fixture"} 2', metrics)
        self.assertIn('millrace_tokenizer_replaced_total{model="fixture"} 0', metrics)
        self.assertIn('millrace_tokenize_seconds_count{model="fixture",outcome="done"}', metrics)


class FollowingTextTest(unittest.TestCase):
    """What a token adds to a prompt's text, as the tokenizer's program computes it: parts of characters, and blanks."""

    @classmethod
    def setUpClass(cls):
        path = list(sys.path)  # the program removes its own folder from it
        sys.path.insert(0, os.path.join(HERE, "..", "..", "tokenizer"))
        try:
            import millrace_tokenizer
        finally:
            sys.path[:] = path
        cls.program = millrace_tokenizer

    def test_tokens_add_up_to_the_text(self):
        for make, added in (byte_level, 1500), (byte_fallback, None):
            tokenizer = self.program.ModelTokenizer(directory_of(f"following-{make.__name__}", make(added) if added else make()))
            for text in "hello world", "日本語 テキスト 😀!", "a\0b\x01", "é" * 40:
                with self.subTest(text=text, tokenizer=make.__name__):
                    ids = tokenizer.encode(text, add_special_tokens=True)
                    # The contexts are as short as the coordinator's.
                    parts = [tokenizer.text_after(ids[max(0, i - 8):i], [ids[i]]) for i in range(len(ids))]
                    self.assertEqual("".join(parts), text)

    def test_a_part_of_a_character_has_no_text_and_is_named_by_its_bytes(self):
        tokenizer = self.program.ModelTokenizer(directory_of("following-bytes", byte_fallback()))
        ids = tokenizer.encode("😀", add_special_tokens=False)
        self.assertEqual(ids[-4:], [3 + byte for byte in "😀".encode()])
        self.assertEqual([tokenizer.text_after(ids[:i], [ids[i]]) for i in range(len(ids) - 4, len(ids))], ["", "", "", "😀"])
        self.assertEqual(tokenizer.name_after(ids[:1], ids[-4]), "bytes:\\xf0")
        self.assertEqual(tokenizer.text_after(ids, [2]), "")  # </s>
        self.assertEqual(tokenizer.name_after(ids, 2), "</s>")


class NastyTextTestCase:
    def test_tokens_are_the_librarys(self):
        repeats = random.Random(2)
        for name, text in {"emoji": "👩‍👩‍👧‍👦 😀🏳️‍🌈", "combining": "é" * 300, "nul": "a\0b\0", "control": "".join(map(chr, range(1, 32))),
                           "special tokens": "say <|endoftext|> and </s> and <s>", "line ends": "a\r\nb\n\n\n c ", "private": "\U0010ffff\ue000",
                           "not a character": "\ufffe\uffff\ufffd", "right to left": "שלום \u202eabc", "one character": "a" * 3000,
                           "blanks": " " * 2000, "one word of many merges": "".join(repeats.choice("etaoinshrdlu") for _ in range(3000)),
                           "json": '{"prompt": "\\u0000 \\"quoted\\" \\\\"}'}.items():
            with self.subTest(text=name):
                self.assert_tokens(text)

    def test_a_megabyte_of_one_character_is_answered_and_the_service_goes_on(self):
        # More tokens than the group takes, which shows only once they are counted.
        text = "a" * 2**20
        count = len(self.library.encode(text).ids)
        status, _, answer = self.complete(text)
        if count > 262144:
            self.assertEqual((status, answer["error"]["param"]), (413, "prompt"), answer)
            self.assertIn(str(count), answer["error"]["message"])
        else:
            self.assertEqual(status, 413 if status == 413 else 200, answer)
        self.assert_tokens("hello world")


class ByteLevelTest(NastyTextTestCase, TextTestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = directory_of("byte-level", byte_level(1500))
        super().setUpClass()


class ByteFallbackTest(NastyTextTestCase, TextTestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = directory_of("byte-fallback", byte_fallback())
        super().setUpClass()


class TroubleTestCase(TextTestCase):
    def ready_pid(self):
        wait_until("a tokenizer", lambda: self.service.get("/health")[2]["tokenizers"]["fixture"]["ready"] == 1, PATIENCE_S)
        (pid,) = tokenizer_pids(self.service)
        return pid


class TroubleTest(TroubleTestCase):
    options = ("--tokenizer-processes", "1", "--tokenizer-timeout", "120")

    def test_one_that_is_killed_costs_its_request_and_comes_back(self):
        pid = self.ready_pid()
        os.kill(pid, signal.SIGSTOP)
        waiting = InBackground(lambda: self.complete(" daze"))
        # Sent once there is nothing left to read for others: the service answers meanwhile.
        for _ in range(3):
            self.assertEqual(self.service.get("/health")[0], 200)
            self.assertEqual(self.service.prefill(SHORT)[0], 200)
        os.kill(pid, signal.SIGKILL)
        status, headers, answer = waiting.wait(PATIENCE_S)
        self.assertEqual((status, answer["error"]["type"], answer["error"]["retriable"]), (503, "unavailable", True))
        self.assertIn("signal 9", answer["error"]["message"])
        self.assertIn("Retry-After", headers)
        self.assert_tokens(" daze")
        self.assertNotEqual(self.ready_pid(), pid)

    def test_a_deadline_of_a_client_ends_no_process(self):
        pid = self.ready_pid()
        os.kill(pid, signal.SIGSTOP)
        status, answer = self.post("/v1/prefill?model=fixture&deadline_ms=300", " daze", "text/plain")
        self.assertEqual((status, answer["error"]["type"]), (504, "deadline_exceeded"))
        os.kill(pid, signal.SIGCONT)
        self.assert_tokens(" daze")
        self.assertEqual(self.ready_pid(), pid)

    def test_a_client_that_leaves_is_not_waited_for(self):
        pid = self.ready_pid()
        os.kill(pid, signal.SIGSTOP)
        connection = http.client.HTTPConnection("127.0.0.1", self.service.http_port, timeout=PATIENCE_S)
        connection.request("POST", "/v1/completions", json.dumps({"model": "fixture", "prompt": " daze"}))
        # Resets the connection. Closing only its sending side would not say whether the client still listens.
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        wait_until("the cancellation", lambda: 'outcome="refused",reason="cancelled"} 1' in self.service.get("/metrics")[2], PATIENCE_S)
        os.kill(pid, signal.SIGCONT)
        self.assert_tokens(" daze")


class HangTest(TroubleTestCase):
    options = ("--tokenizer-processes", "1", "--tokenizer-timeout", "5")

    def test_one_that_hangs_is_given_up(self):
        pid = self.ready_pid()
        os.kill(pid, signal.SIGSTOP)
        status, _, answer = self.complete(" daze")
        self.assertEqual((status, answer["error"]["type"]), (504, "deadline_exceeded"), answer)
        wait_until("another process", lambda: pid not in tokenizer_pids(self.service), PATIENCE_S)
        self.ready_pid()
        self.assert_tokens(" daze")


class StartTest(unittest.TestCase):
    """What a coordinator refuses at start, with the file and the reason."""

    def start(self, *more):
        done = subprocess.run([os.path.join(BIN_DIR, "millrace-coordinator"), "--http-port", "0", "--group-port", "0", *more],
                              capture_output=True, text=True, timeout=PATIENCE_S)
        return done.returncode, done.stderr

    def test_files_that_are_none(self):
        for name, content, why in (("missing", None, "No such file"), ("no-json", "{", "EOF"), ("other", '{"a": 1}', "expected"),
                                   ("binary", b"\xff\xfe", "utf-8")):
            directory = os.path.join(SCRATCH.name, name)
            os.makedirs(directory)
            path = os.path.join(directory, "tokenizer.json")
            if content is not None:
                with open(path, "wb") as file:
                    file.write(content if isinstance(content, bytes) else content.encode())
            with self.subTest(name):
                status, said = self.start(*options(directory))
                self.assertEqual(status, 1, said)
                self.assertIn(f"--tokenizer fixture={directory}: {path}: ", said)
                self.assertRegex(said, f"(?i){why}|Expecting")

    def test_a_python_without_the_package(self):
        bare = os.path.join(SCRATCH.name, "bare-python")
        with open(bare, "w") as file:
            file.write(f"#!/bin/sh\nexec {sys.executable} -S \"$@\"\n")
        os.chmod(bare, 0o755)
        status, said = self.start("--tokenizer", f"fixture={MODEL_DIR}", "--tokenizer-python", bare)
        self.assertEqual(status, 1, said)
        self.assertIn("pip install tokenizers", said)
        status, said = self.start("--tokenizer", f"fixture={MODEL_DIR}", "--tokenizer-python", "/nowhere/python3")
        self.assertEqual(status, 1, said)
        self.assertIn("/nowhere/python3", said)

    def test_options_that_are_none(self):
        for text in "fixture", "=dir", "fixture=":
            status, said = self.start("--tokenizer", text)
            self.assertEqual(status, 2, said)
            self.assertIn("MODEL=DIR", said)
        self.assertEqual(self.start("--tokenizer", "a=b", "--tokenizer", "a=c")[0], 2)
        self.assertEqual(self.start("--tokenizer-processes", "2")[0], 2)


def directory_with_one_more_id():
    """The fixture's tokenizer with an id that its model lacks, as Gemma 3 1B's has one for images."""
    with open(os.path.join(MODEL_DIR, "tokenizer.json")) as file:
        made = json.load(file)
    made.setdefault("added_tokens", []).append({"id": 2048, "content": "<image_soft_token>", "single_word": False, "lstrip": False, "rstrip": False,
                                                "normalized": False, "special": True})
    path = os.path.join(SCRATCH.name, "one-more-id")
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "tokenizer.json"), "w") as file:
        json.dump(made, file)
    return path


class MoreIdsTest(TextTestCase):
    directory = directory_with_one_more_id()

    def test_only_a_text_with_such_a_token_is_refused(self):
        self.assert_tokens(" daze gotu")
        status, answer = self.post("/v1/prefill?model=fixture", " daze gotu", "text/plain")
        self.assertEqual((status, answer["num_tokens"]), (200, 3))
        self.assertIsInstance(answer["first_token_text"], str)
        for path, body, param in (("/v1/completions", {"model": "fixture", "prompt": " daze<image_soft_token>"}, "prompt"),
                                  ("/v1/prefill", {"model": "fixture", "text": " daze<image_soft_token>"}, "text")):
            status, _, answer = self.service.request("POST", path, body)
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
            self.assertIn("token 2 of the text is 2048", answer["error"]["message"])
            self.assertIn("vocabulary of 2048", answer["error"]["message"])
        self.service.wait_for_log("has 2049 token ids, its groups' vocabulary 2048")

    def test_lines_of_a_batch_job_neither(self):
        with tempfile.TemporaryDirectory(prefix="millrace-e2e-") as directory:
            path = os.path.join(directory, "prompts.jsonl")
            with open(path, "w") as file:
                for name, text in ("inside", " daze gotu"), ("outside", " daze<image_soft_token>"):
                    file.write(json.dumps({"id": name, "text": text}) + "\n")
            done = subprocess.run([os.path.join(BIN_DIR, "millrace-batch"), "--model", MODEL_DIR, "--tokenizer", self.directory, "--input", path,
                                   "--output", directory, "--head-plan", "dense", "--threads", "1", "--tokenizer-python", PYTHON],
                                  capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("has 2049 token ids, the model a vocabulary of 2048", done.stderr)
            with open(os.path.join(directory, "results.jsonl")) as file:
                inside, outside = map(json.loads, file)
        self.assertEqual(inside["num_tokens"], 3)
        self.assertIn("token 2 of the text is 2048", outside["error"]["message"])


class BatchTest(unittest.TestCase):
    def test_lines_may_be_text(self):
        library = Tokenizer.from_file(os.path.join(MODEL_DIR, "tokenizer.json"))
        text = library.decode(SHORT["prompt_token_ids"], skip_special_tokens=True)
        lines = [{"id": "text", "text": text, "max_tokens": 4}, {"id": "prompt", "prompt": text}, {**SHORT, "id": "ids", "max_tokens": 4},
                 {"id": "bare", "text": text, "add_special_tokens": False}, {"id": "both", "text": text, "prompt_token_ids": [1]},
                 {"id": "empty", "text": "", "add_special_tokens": False}]
        with tempfile.TemporaryDirectory(prefix="millrace-e2e-") as directory:
            path = os.path.join(directory, "prompts.jsonl")
            with open(path, "w") as file:
                for line in lines:
                    file.write(json.dumps(line) + "\n")
            done = subprocess.run([os.path.join(BIN_DIR, "millrace-batch"), "--model", MODEL_DIR, "--input", path, "--output", directory,
                                   "--crossover-tokens", "0", "--head-plan", "dense", "--threads", "1", "--tokenizer-python", PYTHON],
                                  capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertEqual(done.returncode, 1, done.stderr)
            with open(os.path.join(directory, "results.jsonl")) as file:
                results = {result["id"]: result for result in map(json.loads, file)}
        self.assertEqual(results["text"]["generated_token_ids"], SHORT["answer_token_ids"])
        self.assertEqual(results["text"]["generated_text"], library.decode(SHORT["answer_token_ids"]))
        self.assertEqual((results["text"]["num_tokens"], results["prompt"]["num_tokens"], results["bare"]["num_tokens"]), (1024, 1024, 1023))
        self.assertNotIn("generated_text", results["ids"])
        self.assertEqual({results[name]["error"]["code"] for name in ("both", "empty")}, {"invalid_argument"})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
