#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a chat template sees of a message and of a tool. The expected values are what vLLM 0.32 gave its templates for the same bodies;
tests/engines/rendering_test.py compares with vLLM itself, and renders. Python's standard library only."""
import importlib.util
import json
import sys
import unittest

spec = importlib.util.spec_from_file_location("millrace_tokenizer", sys.argv.pop(1))
program, path = importlib.util.module_from_spec(spec), list(sys.path)
spec.loader.exec_module(program)
sys.path[:] = path


def call(arguments):
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


class ChatMessagesTest(unittest.TestCase):
    def assert_seen(self, message, as_text, as_parts=None):
        """Compares as JSON, because templates write fields in the order that they have."""
        self.assertEqual(json.dumps(program.message_of(message, False)), json.dumps(as_text))
        self.assertEqual(json.dumps(program.message_of(message, True)), json.dumps(as_parts or as_text))

    def test_a_message_without_content_has_an_empty_one(self):
        for given in ({"content": None}, {}):
            self.assert_seen({"role": "assistant", **given, "tool_calls": [call("{}")]},
                             {"role": "assistant", "content": "", "tool_calls": [
                                 {"id": "c", "function": {"arguments": {}, "name": "f"}, "type": "function"}]},
                             {"role": "assistant", "content": [], "tool_calls": [
                                 {"id": "c", "function": {"arguments": {}, "name": "f"}, "type": "function"}]})

    def test_parts_stay_parts_for_templates_that_take_them_and_are_lines_for_others(self):
        parts = [{"type": "text", "text": "x"}, "y", {"type": "text", "text": ""}, {"type": "text", "text": "z", "cache_control": {}}]
        self.assert_seen({"role": "user", "content": parts}, {"role": "user", "content": "x\ny\nz"},
                         {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}, {"type": "text", "text": ""},
                                                      {"type": "text", "text": "z", "cache_control": {}}]})
        self.assert_seen({"role": "user", "content": "x"}, {"role": "user", "content": "x"},
                         {"role": "user", "content": [{"type": "text", "text": "x"}]})

    def test_what_a_tool_answered_is_text_for_all_templates(self):
        self.assert_seen({"role": "tool", "content": [{"type": "text", "text": "5"}, {"type": "text", "text": "6"}], "tool_call_id": "c"},
                         {"role": "tool", "content": "5\n6", "tool_call_id": "c"})

    def test_arguments_that_are_no_object_count_as_an_empty_one(self):
        for text, seen in (("{\"b\": 1, \"a\": 2}", {"b": 1, "a": 2}), ("", {}), ("{", {}), ("[]", {}), ("42", {}), ("null", {})):
            with self.subTest(text=text):
                message = program.message_of({"role": "assistant", "tool_calls": [call(text)]}, False)
                self.assertEqual(json.dumps(message["tool_calls"][0]["function"]), json.dumps({"arguments": seen, "name": "f"}))

    def test_fields_of_an_answer_that_are_null_are_not_seen(self):
        answer = {"content": "a", "tool_calls": None, "refusal": None, "audio": None, "function_call": None, "reasoning_content": None}
        self.assert_seen({"role": "assistant", **answer}, {"role": "assistant", "content": "a"},
                         {"role": "assistant", "content": [{"type": "text", "text": "a"}]})
        self.assertNotIn("tool_calls", program.message_of({"role": "assistant", "content": "a", "tool_calls": []}, False))

    def test_reasoning_has_both_names(self):
        for given in ({"reasoning": "r"}, {"reasoning_content": "r"}, {"reasoning": "r", "reasoning_content": "s"}):
            seen = program.message_of({"role": "assistant", "content": "a", **given}, False)
            self.assertEqual(seen, {"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"})

    def test_developers_speak_as_the_system_where_a_template_knows_none(self):
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "developer", "content": "d", "tools": None}]
        self.assertEqual(program.with_one_system_message(messages), [{"role": "system", "content": "s\n\nd"}, {"role": "user", "content": "u"}])

    def test_tools_have_the_fields_that_vllm_gives_them_in_its_order(self):
        given = {"more": 1, "type": "function", "function": {"parameters": {"z": 1, "a": 2}, "more": 2, "name": "g"}}
        self.assertEqual(json.dumps(program.tools_of({"tools": [given]})), json.dumps(
            [{"type": "function", "function": {"name": "g", "description": None, "parameters": {"z": 1, "a": 2}}}]))

    def test_what_is_no_text_is_refused_by_its_type(self):
        for part, kind in (({"type": "image_url", "image_url": {"url": "x"}}, "image_url"), ({"text": "x"}, "None"), (3, "int")):
            with self.subTest(part=part), self.assertRaisesRegex(program.Refused, kind):
                program.message_of({"role": "user", "content": [part]}, False)


if __name__ == "__main__":
    unittest.main(verbosity=2)
