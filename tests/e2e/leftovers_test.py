#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""When a group's mpirun is killed, the next start of that group removes what it left on its host, and nothing else."""
import os
import signal
import sys
import unittest

from service import PATIENCE_S, Service, ServiceTestCase, alive, make_prompt, wait_until

SHORT = make_prompt(1024, seed=1)


class KilledMpirunTest(ServiceTestCase):
    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)
        self.disk = os.path.join(self.service.directory.name, "disk")

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def start(self, name):
        before = self.files()
        group = self.service.start_group("--group-name", name, "--threads", 1, "--host-pool", "48MiB", "--device-pool", "4MiB",
                                         "--disk-pool", "16MiB", "--disk-directory", os.path.join(self.disk, name), wait=False)
        wait_until(f"group {name}", lambda: f'group="{name}"' in self.service.get("/metrics")[2], PATIENCE_S)
        return group, self.files() - before

    def files(self):
        """Files of Open MPI, the ranks' job records, and files of disk tiers. Directories that outlive groups by design do not count."""
        found = set(self.service.job_records())
        for root in self.service.shared_memory.name, self.service.sessions, self.disk:
            for directory, _, names in os.walk(root):
                found |= {os.path.join(directory, name) for name in names}
        return found

    @staticmethod
    def ranks_of(group):
        with open(f"/proc/{group.pid}/task/{group.pid}/children") as file:
            return [int(pid) for pid in file.read().split()]

    def kill(self, group):
        ranks = self.ranks_of(group)
        self.assertEqual(len(ranks), 2)
        group.kill()
        group.wait(PATIENCE_S)
        wait_until("the end of its ranks", lambda: not any(map(alive, ranks)), PATIENCE_S)

    def test_the_next_start_removes_what_the_dead_group_left_and_only_that(self):
        killed, killed_files = self.start("killed")
        other, other_files = self.start("other")
        living, living_files = self.start("living")
        status, _, body = self.service.prefill(SHORT)
        self.assertEqual(status, 200, body)
        self.assertTrue(killed_files and other_files and living_files)
        self.assertFalse({path for path in self.files() if path.startswith(self.disk)})  # pages are in unlinked files
        self.kill(killed)
        self.kill(other)
        self.assertTrue({path for path in killed_files if "vader_segment" in path} <= self.files())  # otherwise the test checks nothing
        self.assertGreater(sum(os.stat(path).st_blocks * 512 for path in killed_files), 1 << 20)

        restarted, restarted_files = self.start("killed")
        self.assertEqual(killed_files & self.files(), set())
        self.assertEqual(other_files - self.files(), set())
        self.assertEqual(living_files - self.files(), set())
        status, _, body = self.service.prefill(SHORT)
        self.assertEqual(status, 200, body)
        self.assertEqual(body["first_token_id"], SHORT["answer_token_ids"][0])

        other, _ = self.start("other")
        self.assertEqual(other_files & self.files(), set())
        for group in restarted, other, living:
            group.send_signal(signal.SIGUSR1)
        for group in restarted, other, living:
            self.assertEqual(group.wait(PATIENCE_S), 0)
        self.assertEqual(self.files(), set())

    def test_a_start_beside_ranks_that_are_still_dying_removes_their_files_too(self):
        killed, files = self.start("killed")
        # Stopped ranks do not see that mpirun is gone until they run again.
        dying = self.ranks_of(killed)
        for pid in dying:
            os.kill(pid, signal.SIGSTOP)
        killed.kill()
        killed.wait(PATIENCE_S)
        next_group = self.service.start_group("--group-name", "killed", "--threads", 1, wait=False)
        wait_until("both ranks", lambda: len(self.ranks_of(next_group)) == 2, PATIENCE_S)
        wait_until("a second record", lambda: len(self.service.job_records()) == 2, PATIENCE_S)
        held = self.ranks_of(next_group)[0]
        os.kill(held, signal.SIGSTOP)
        self.assertEqual(files - self.files(), set())
        for pid in dying:
            os.kill(pid, signal.SIGKILL)
        wait_until("their end", lambda: not any(map(alive, dying)), PATIENCE_S)
        os.kill(held, signal.SIGCONT)
        wait_until("their files' end", lambda: not files & self.files(), PATIENCE_S)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
