#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files of options: every option of every program, as --help names it, is a key, and what --print-config prints of it is read back."""
import os
import re
import subprocess
import tempfile
import unittest

BIN_DIR = os.environ["MILLRACE_BIN_DIR"]
ROOT = os.environ["MILLRACE_SOURCE_DIR"]
PROGRAMS = ["coordinator", "worker", "batch", "calibrate", "client", "decode", "bench"]
NOT_FOR_FILES = {"--help", "--version", "--config", "--print-config"}
# Values to try, since an option may be of any kind: the first that it accepts is used.
VALUES = ['a "b" #c\\d', "1", "0.5", "100", "1MiB", "10.0.0.1:8001", "tcp://10.0.0.1:5557", "http://10.0.0.1:4318", "cpu", "a=b", "a", "adaptive"]
# What options of a kind most often take is tried first: every attempt starts the program.
LIKELY = {"N": "1", "SIZE": "1", "SHARE": "1", "URL": "http://10.0.0.1:4318", "ENDPOINT": "tcp://10.0.0.1:5557", "HOST:PORT": "10.0.0.1:8001",
          "LIST": "adaptive"}


def run(program, *words):
    path = os.path.join(BIN_DIR, f"millrace-{program}")
    return subprocess.run([path, *words], capture_output=True, text=True, timeout=60)


def toml_string(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Command:
    """A program, or one of its commands, with {option: kind of its value}."""

    def __init__(self, program, name=None):
        self.program, self.name = program, name
        self.words = [name] if name else []
        table = self.printed().stdout.split("\n[")[1 if name else 0]
        self.options = {f"--{key}": kind for key, kind in re.findall(r"^# ([a-z0-9-]+) = (\S+)$", table, re.M)}

    def all_of(program):
        text = run(program, "--help").stdout
        names = re.findall(r"^  ([a-z-]+)", text.split("Subcommands:")[1], re.M) if "Subcommands:" in text else []
        return [Command(program, name) for name in [None, *names]]

    def printed(self, *words):
        return run(self.program, *self.words, *words, "--print-config")


COMMANDS = [command for program in PROGRAMS for command in Command.all_of(program)]


def lines_of(text):
    return [line for line in text.splitlines() if line and not line.startswith("#")]


class ConfigTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="millrace-e2e-")
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "options.toml")

    def write(self, text):
        with open(self.path, "w") as file:
            file.write(text)

    def given(self, command, option):
        """A value that the option accepts on the command line, the words for it and those that it needs, and what is then printed."""
        if command.options[option] == "true":
            values = [None]
        elif "|" in command.options[option]:
            values = command.options[option].split("|")[1:]
        else:
            likely = LIKELY.get(command.options[option])
            values = sorted(VALUES, key=lambda value: value != likely)
        for value in values:
            words = [option] if value is None else [f"{option}={value}"]
            done = command.printed(*words)
            # "--kv-tls-key requires --kv-tls-cert"
            while needed := re.match(r"--\S+ requires (--\S+)", done.stderr):
                scheme = "http" if "otlp" in needed[1] else "tcp"
                words.append(f"{needed[1]}={f'{scheme}://10.0.0.1:1' if 'endpoint' in needed[1] else 'a=b'}")
                done = command.printed(*words)
            if done.returncode == 0:
                return value, done.stdout
        self.fail(f"none of {values} is accepted: {done.stderr}")

    def test_every_option_of_every_program_is_printed_and_read_back(self):
        count = 0
        for command in COMMANDS:
            for option in command.options:
                with self.subTest(program=command.program, command=command.name, option=option):
                    value, printed = self.given(command, option)
                    key = option.removeprefix("--")
                    count += 1
                    if command.options[option] == "SECRET":
                        self.assertNotIn(f"{key} = {toml_string(value)}", printed)
                        continue
                    texts = {"true"} if value is None else {value, toml_string(value)}
                    texts |= {f"[{text}]" for text in texts}
                    self.assertIn(re.search(rf"^{key} = (.*)$", printed, re.M)[1], texts)
                    self.write(printed)
                    again = command.printed("--config", self.path)
                    self.assertEqual((again.stderr, again.stdout), ("", printed))
        self.assertGreater(count, 150)

    def test_keys_are_the_options_of_help(self):
        for command in COMMANDS:
            with self.subTest(program=command.program, command=command.name):
                text = run(command.program, *command.words, "--help").stdout
                named = set(re.findall(r"^ +(?:-\w,)?(--[a-z0-9-]+)", text, re.M))
                self.assertEqual(named - NOT_FOR_FILES, set(command.options))

    def test_an_unknown_key_is_refused_with_file_and_line(self):
        for program in PROGRAMS:
            with self.subTest(program=program):
                self.write("# a comment\n\nno-such-option = 1\n")
                done = run(program, "--config", self.path)
                self.assertEqual(done.returncode, 2)
                self.assertIn(f"{self.path}:3: no-such-option: millrace-{program} has no such option", done.stderr)

    def test_every_option_is_documented(self):
        with open(os.path.join(ROOT, "docs", "options.md")) as file:
            named = set(re.findall(r"--[a-z0-9-]+", file.read()))
        for command in COMMANDS:
            if command.program != "bench":  # its options are in bench/README.md, by task
                with self.subTest(program=command.program, command=command.name):
                    self.assertEqual(sorted(set(command.options) - named), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
