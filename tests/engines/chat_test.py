#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions on a real coordinator and group: the model's chat template turns messages into the prompt."""
import contextlib
import hashlib
import http.client
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

from tokenizers import Tokenizer

sys.path.insert(0, os.path.join(os.environ["MILLRACE_SOURCE_DIR"], "tests/e2e"))
from service import BIN_DIR, MODEL_DIR, PATIENCE_S, Service, ServiceTestCase, make_prompt  # noqa: E402

SCRATCH = tempfile.TemporaryDirectory(prefix="millrace-chat-")
SHORT = make_prompt(1024, seed=1)

# A template that writes its inputs in the fixture's words.
TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
  {%- if message['role'] == 'nobody' %}{{ raise_exception('no such role: nobody') }}{% endif %}
  {%- for call in message['tool_calls'] or [] %}
    {%- for name, value in call['function']['arguments'] | dictsort %}{{ ' ' + name + ' ' + value }}{% endfor %}
  {%- endfor %}
  {{- message['content'] or '' }}
{%- endfor %}
{%- for tool in tools or [] %}{{ ' ' + tool['function']['name'] }}{% endfor %}
{%- if word %}{{ ' ' + word }}{% endif %}
{%- if add_generation_prompt and mark %}{{ ' ' + mark }}{% endif %}"""


def directory_with(template):
    path = tempfile.mkdtemp(dir=SCRATCH.name)
    shutil.copy(os.path.join(MODEL_DIR, "tokenizer.json"), path)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"}
    with open(os.path.join(path, "tokenizer_config.json"), "w") as file:
        json.dump(config | ({"chat_template": template} if template else {}), file)
    return path


def options(directory, *more):
    return ["--tokenizer", f"fixture={directory}", "--tokenizer-python", sys.executable, *more]


def digest(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()


class ChatTest(ServiceTestCase):
    @classmethod
    def setUpClass(cls):
        cls.library = Tokenizer.from_file(os.path.join(MODEL_DIR, "tokenizer.json"))
        cls.text = cls.library.decode(SHORT["prompt_token_ids"], skip_special_tokens=True)
        cls.answer = cls.library.decode(SHORT["answer_token_ids"][:1])
        vocabulary = cls.library.get_vocab()
        cls.words = sorted(token[1:] for token in vocabulary if token.startswith(" "))[:4]
        cls.service = Service(coordinator_options=options(directory_with(TEMPLATE), "--tokenizer-chat", "--tokenizer-processes", "1"))
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group(tp=1)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def chat(self, messages, **fields):
        return self.service.request("POST", "/v1/chat/completions", {"model": "fixture", "messages": messages, "max_tokens": 1, **fields})

    def assert_prompt(self, text, messages, **fields):
        """Checks that the prompt that was run is `text` after the one <bos> that the template writes."""
        ids = self.library.encode("<bos>" + text, add_special_tokens=False).ids
        status, _, answer = self.chat(messages, **fields)
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["usage"]["prompt_tokens"], len(ids))
        self.assertEqual(answer["kv_transfer_params"]["millrace"]["prompt_sha256"], digest(ids))
        self.assertEqual(answer["kv_transfer_params"]["prompt_token_ids"], ids)
        return answer

    def test_messages_are_the_prompt_that_the_template_makes_of_them(self):
        half = self.text.index("\n", len(self.text) // 2)
        messages = [{"role": "system", "content": self.text[:half]}, {"role": "user", "content": self.text[half:]}]
        answer = self.assert_prompt(self.text, messages, temperature=0.7, tool_choice="auto", kv_transfer_params={"do_remote_decode": True})
        self.assertTrue(answer["id"].startswith("chatcmpl-"))
        self.assertEqual(answer["object"], "chat.completion")
        (choice,) = answer["choices"]
        self.assertEqual(choice["message"], {"role": "assistant", "content": self.answer})
        self.assertEqual((choice["token_ids"], choice["logprobs"], choice["finish_reason"]), (SHORT["answer_token_ids"][:1], None, "length"))
        # The same prompt as tokens.
        status, _, whole = self.service.request("POST", "/v1/completions", {"model": "fixture", "prompt": SHORT["prompt_token_ids"]})
        self.assertEqual((status, whole["kv_transfer_params"]["millrace"]["prompt_sha256"]),
                         (200, answer["kv_transfer_params"]["millrace"]["prompt_sha256"]))

    def test_parts_of_a_content_are_lines(self):
        break_at = self.text.index("\n", len(self.text) // 2)
        parts = [{"type": "text", "text": self.text[:break_at]}, {"type": "text", "text": self.text[break_at + 1:]}]
        self.assert_prompt(self.text, [{"role": "user", "content": parts}])

    def test_templates_that_take_parts_get_parts_and_a_message_without_content_is_empty(self):
        one, two = self.words[:2]
        takes_text = "{{ bos_token }}{% for m in messages %}{{ m['content'] + '' }}{% endfor %}"
        takes_parts = ("{{ bos_token }}{% for m in messages %}{% if m['content'] is string %}{{ raise_exception('text') }}{% endif %}"
                       "{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}")
        parts = [{"type": "text", "text": f" {one}"}, {"type": "text", "text": f" {two}"}]
        call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "c", "function": {"name": "f", "arguments": "{}"}}]}
        bare = {name: value for name, value in call.items() if name != "content"}
        for template, joined in (takes_text, f" {one}\n {two}"), (takes_parts, f" {one} {two}"):
            service = Service(coordinator_options=options(directory_with(template), "--tokenizer-chat", "--tokenizer-processes", "1"))
            self.addCleanup(service.close)
            service.start_group(tp=1)
            for messages in [{"role": "user", "content": parts}], [call, {"role": "user", "content": parts}, bare]:
                status, _, answer = service.request("POST", "/v1/chat/completions", {"model": "fixture", "messages": messages})
                self.assertEqual(status, 200, answer)
                self.assertEqual(answer["kv_transfer_params"]["millrace"]["prompt_sha256"],
                                 digest(self.library.encode("<bos>" + joined, add_special_tokens=False).ids))

    def test_the_template_sees_what_clients_say_to_it(self):
        one, two, three, four = self.words
        user = {"role": "user", "content": f" {one}"}
        self.assert_prompt(f" {one}", [user])
        self.assert_prompt(f" {one} {two}", [user], tools=[{"type": "function", "function": {"name": two, "parameters": {}}}])
        self.assert_prompt(f" {one} {three} {four}", [user], chat_template_kwargs={"word": three, "mark": four})
        self.assert_prompt(f" {one}", [user], chat_template_kwargs={"mark": four}, add_generation_prompt=False)
        # Clients send the arguments of a call as text.
        call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": json.dumps({two: three})}}
        self.assert_prompt(f" {one} {two} {three}", [user, {"role": "assistant", "content": None, "tool_calls": [call]}])
        self.assert_prompt(f" {one}", [user], add_generation_prompt=False, continue_final_message=True)

    def test_logprobs_and_streams_have_the_shape_of_chats(self):
        user = [{"role": "user", "content": self.text}]
        _, _, answer = self.chat(user, logprobs=True, top_logprobs=2)
        (entry,) = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual((entry["token"], entry["bytes"]), (self.answer, list(self.answer.encode())))
        self.assertEqual(len(entry["top_logprobs"]), 2)
        self.assertEqual({name: entry[name] for name in ("token", "logprob", "bytes")}, entry["top_logprobs"][0])
        _, _, answer = self.chat(user, logprobs=True)
        self.assertEqual(answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"], [])
        connection = http.client.HTTPConnection("127.0.0.1", self.service.http_port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/chat/completions", json.dumps(
                {"model": "fixture", "messages": user, "stream": True, "stream_options": {"include_usage": True}}))
            events = connection.getresponse().read().decode().split("\n\n")
        first, usage = (json.loads(event.removeprefix("data: ")) for event in events[:2])
        self.assertEqual(first["object"], "chat.completion.chunk")
        self.assertEqual(first["choices"][0]["delta"], {"role": "assistant", "content": self.answer})
        self.assertIn("millrace", first["kv_transfer_params"])
        self.assertEqual((usage["choices"], usage["usage"]["prompt_tokens"]), ([], 1024))
        self.assertEqual(events[2:], ["data: [DONE]", ""])

    def test_what_is_wrong_is_refused_by_name(self):
        user = [{"role": "user", "content": " a"}]
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]
        call = [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f", "input": "a"}}]}]
        for messages, fields, param, why in (
                ("a", {}, "messages", "must be a list of messages"), ([], {}, "messages", "at least one message"), (None, {}, "messages", "missing"),
                ([1], {}, "messages", "object with a 'role'"), ([{"content": "a"}], {}, "messages", "object with a 'role'"),
                (image, {}, "messages", "image_url"), (call, {}, "messages", "'tool_calls' must be"),
                ([{"role": "nobody", "content": ""}], {}, "messages", "no such role: nobody"),
                (user, {"chat_template": "{{ 1 }}"}, "chat_template", "the model's own"),
                (user, {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "messages", "'chat_template_kwargs'"),
                (user, {"chat_template_kwargs": [1]}, "messages", "'chat_template_kwargs'"),
                (user, {"n": 2}, "n", "must be 1"), (user, {"logprobs": 2}, "logprobs", "true or false")):
            with self.subTest(messages=messages, fields=fields):
                status, _, answer = self.chat(messages, **fields)
                self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
                self.assertIn(why, answer["error"]["message"])
        self.assertEqual(self.chat([{"role": "user", "content": "a" * (17 << 20)}])[0], 413)
        # The tokenizer still serves the next request.
        self.assert_prompt(f" {self.words[0]}", [{"role": "user", "content": f" {self.words[0]}"}])

    def test_templates_cannot_leave_their_sandbox(self):
        service = Service(coordinator_options=options(directory_with("{{ messages.__class__.__mro__[1].__subclasses__() }}"), "--tokenizer-chat"))
        self.addCleanup(service.close)
        service.start_group(tp=1)
        status, _, answer = service.request("POST", "/v1/chat/completions", {"model": "fixture", "messages": [{"role": "user", "content": "a"}]})
        self.assertEqual(status, 400, answer)
        self.assertIn("SecurityError", answer["error"]["message"])

    def test_without_the_option_chats_are_refused(self):
        service = Service(coordinator_options=options(directory_with(TEMPLATE)))
        self.addCleanup(service.close)
        service.start_group(tp=1)
        status, _, answer = service.request("POST", "/v1/chat/completions", {"model": "fixture", "messages": [{"role": "user", "content": "a"}]})
        self.assertEqual((status, answer["error"]["param"]), (400, "messages"))
        self.assertIn("--tokenizer-chat", answer["error"]["message"])

    def test_a_folder_without_a_template_ends_the_start(self):
        directory = directory_with(None)
        done = subprocess.run([os.path.join(BIN_DIR, "millrace-coordinator"), "--http-port", "0", "--group-port", "0",
                               *options(directory, "--tokenizer-chat")], capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f"{directory} has no chat template", done.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
