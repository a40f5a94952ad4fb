#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens and TLS between coordinator, group, command line and Python package. The openssl command makes the certificates."""
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from service import BIN_DIR, PATIENCE_S, SOURCE_DIR, Service, ServiceTestCase, make_prompt, wait_until

sys.path.insert(0, os.path.join(SOURCE_DIR, "sdk/python"))
import millrace_kv  # noqa: E402

PROMPT = make_prompt(512, seed=1)["prompt_token_ids"]


class Authority:
    """A CA in a directory, and the certificates that it signs."""

    def __init__(self, directory, name):
        self._directory, self._name = directory, name
        self.certificate = self._path(name, "pem")
        self._openssl("req", "-x509", *self._new_key(name), "-subj", "/CN=" + name, "-days", "1", "-out", self.certificate)

    def issue(self, name):
        """Returns the paths of (certificate, key) for 127.0.0.1."""
        self._openssl("req", "-x509", *self._new_key(name), "-subj", "/CN=" + name, "-days", "1", "-addext", "subjectAltName=IP:127.0.0.1",
                      "-addext", "basicConstraints=critical,CA:FALSE", "-CA", self.certificate, "-CAkey", self._path(self._name, "key"),
                      "-out", self._path(name, "pem"))
        return self._path(name, "pem"), self._path(name, "key")

    def _path(self, name, kind):
        return os.path.join(self._directory, f"{name}.{kind}")

    def _new_key(self, name):
        return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self._path(name, "key")

    @staticmethod
    def _openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def token_line(name, token, rest):
    return f"{name} {hashlib.sha256(token.encode()).hexdigest()} {rest}\n"


@unittest.skipUnless(shutil.which("openssl"), "no openssl command")
class AccessTest(ServiceTestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="millrace-e2e-")
        cls.addClassCleanup(directory.cleanup)
        cls.directory = directory.name
        cls.clients, cls.groups = Authority(cls.directory, "ca"), Authority(cls.directory, "groups-ca")
        cls.tokens = cls.write("tokens", token_line("router", "posts", "prefill") + token_line("router", "reads", "read") +
                               token_line("other", "others", "prefill"))
        cls.group_files = dict(zip(("--group-tls-cert", "--group-tls-key"), cls.groups.issue("group")))
        cls.group_files["--group-tls-ca"] = cls.groups.certificate
        cls.https, group = cls.clients.issue("coordinator"), cls.groups.issue("coordinator-of-groups")
        cls.service = Service(
            ["--tokens", cls.tokens, "--tls-cert", cls.https[0], "--tls-key", cls.https[1], "--group-tls-cert", group[0], "--group-tls-key", group[1],
             "--group-tls-ca", cls.groups.certificate],
            [word for option in cls.group_files.items() for word in option], admin_port=True)
        cls.addClassCleanup(cls.service.close)
        cls.service.start_group(tp=1)

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    @classmethod
    def write(cls, name, text):
        path = os.path.join(cls.directory, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def coordinator(self, token, authority=None):
        return millrace_kv.Coordinator(f"https://127.0.0.1:{self.service.http_port}", token_file=self.write("token", token + "\n"),
                                       ca_file=(authority or self.clients).certificate)

    def client(self, *arguments, **environment):
        """Exit status and output of millrace-client."""
        done = subprocess.run([os.path.join(BIN_DIR, "millrace-client"), "--server", f"https://127.0.0.1:{self.service.http_port}", *arguments],
                              capture_output=True, text=True, timeout=PATIENCE_S,
                              env={**os.environ, "MILLRACE_TLS_CA": self.clients.certificate, **environment})
        return done.returncode, done.stdout + done.stderr

    def test_a_prompt_runs_and_its_cache_is_released(self):
        coordinator = self.coordinator("posts")
        self.assertEqual(list(coordinator.models()), ["fixture"])
        events = coordinator.prefill("fixture", PROMPT)
        lease_id = events.result(PATIENCE_S).lease_id
        status, said = self.client("release", events.request_id, "--lease-id", lease_id, MILLRACE_TOKEN="reads")
        self.assertEqual((status, '"state":"released"' in said), (0, True), said)

    def test_the_command_line_shows_its_token(self):
        self.assertEqual(self.client("status", "r", MILLRACE_TOKEN="")[1].strip(), "millrace-client: denied: this needs a token: "
                         "'Authorization: Bearer TOKEN'")
        self.assertIn("not_found: no request 'r'", self.client("--token-file", self.write("own", "reads"), "status", "r")[1])
        self.assertIn("not_found: no request 'r'", self.client("status", "r", MILLRACE_TOKEN_FILE=self.write("own", "reads"))[1])

    def test_what_is_anothers_is_not_there(self):
        events = self.coordinator("posts").prefill("fixture", PROMPT)
        events.result(PATIENCE_S)
        with self.assertRaisesRegex(millrace_kv.MillraceError, "no request"):
            self.coordinator("others").end(events.request_id)
        with self.assertRaisesRegex(millrace_kv.MillraceError, "this needs prefill"):
            self.coordinator("reads").end(events.request_id)
        self.coordinator("posts").end(events.request_id)

    def test_a_strange_certificate_is_refused(self):
        with self.assertRaisesRegex(millrace_kv.MillraceError, "certificate verify failed"):
            self.coordinator("posts", self.groups).models()
        status, said = self.client("--tls-ca", self.groups.certificate, "status", "r")
        self.assertEqual((status, "certificate verify failed" in said), (1, True), said)

    def test_a_new_token_is_valid_after_sighup(self):
        with self.assertRaisesRegex(millrace_kv.MillraceError, "not accepted"):
            self.coordinator("late").models()
        with open(self.tokens, "a") as file:
            file.write(token_line("late", "late", "read"))
        self.service.coordinator.send_signal(signal.SIGHUP)

        def accepted():
            try:
                return self.coordinator("late").models()
            except millrace_kv.MillraceError:
                return None
        wait_until("the new token", accepted, PATIENCE_S)

    def test_what_cannot_be_read_again_at_sighup_is_a_line_in_the_log_and_changes_nothing(self):
        log = os.path.join(self.service.directory.name, "coordinator.log")
        for path, reason in (self.tokens, "here are 1 words"), (self.https[0], self.https[0]):
            with self.subTest(path=path):
                with open(path) as file:
                    good = file.read()
                with open(path, "w") as file:
                    file.write("nonsense\n")
                try:
                    self.service.coordinator.send_signal(signal.SIGHUP)

                    def said(reason=reason):
                        with open(log) as file:
                            return [line for line in file if "not reloaded, what was read before stays valid" in line and reason in line]
                    wait_until("the line", said, PATIENCE_S)
                    self.assertTrue(self.coordinator("posts").models())
                finally:
                    with open(path, "w") as file:
                        file.write(good)

    def test_a_group_without_a_certificate_is_refused_with_a_line_in_the_log(self):
        log = os.path.join(self.service.directory.name, "coordinator.log")
        stranger = self.service.start_group("--group-name", "stranger", "--group-tls-cert", "", "--group-tls-key", "", "--group-tls-ca", "",
                                            tp=1, wait=False)

        def refusals():
            with open(log) as file:
                return [line for line in file if "refused: TLS" in line]
        wait_until("the refusal", refusals, PATIENCE_S)
        stranger.terminate()
        stranger.wait(PATIENCE_S)
        self.assertNotIn("group 'stranger'", open(log).read())


if __name__ == "__main__":
    unittest.main()
