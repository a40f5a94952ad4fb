#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the table of ports in docs/operations.md with the sockets that a coordinator, an mpirun and its ranks listen on, from /proc."""
import ipaddress
import os
import re
import signal
import sys
import unittest

from service import SOURCE_DIR, Service, ServiceTestCase, free_ports, make_prompt

SHORT = make_prompt(1024, seed=1)
LISTEN = "0A"  # include/net/tcp_states.h
LOOPBACK = "this host"
ALL = "all interfaces"
EACH = "each interface"


def documented():
    """The first three columns of the table: {row name: (process, addresses)}."""
    with open(os.path.join(SOURCE_DIR, "docs/operations.md")) as file:
        section = file.read().split("\n## Ports\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    return {row[0]: (row[1], row[2]) for row in rows[2:]}


def address_of(text):
    """The address that /proc/net/tcp and tcp6 write as hexadecimal words, each in the machine's byte order."""
    words = bytes.fromhex(text)
    return ipaddress.ip_address(b"".join(words[i:i + 4][::-1] for i in range(0, len(words), 4)))


def listeners(pid):
    """(address, port) of the TCP sockets on which the process listens, and of all its unconnected UDP sockets."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}")):
                inodes.add(found[1])
        except OSError:
            continue
    result = []
    for kind in "tcp", "tcp6", "udp", "udp6":
        with open(f"/proc/{pid}/net/{kind}") as file:
            for fields in map(str.split, file.readlines()[1:]):
                if fields[9] in inodes and (fields[3] == LISTEN or kind.startswith("udp")):
                    address, port = fields[1].split(":")
                    result.append((address_of(address), int(port, 16)))
    return result


def reach(address):
    return ALL if address.is_unspecified else LOOPBACK if address.is_loopback else EACH


class PortsTest(ServiceTestCase):
    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.close)
        self.kv_port = free_ports(68)  # with 64 more that UCX and Open MPI may use
        self.events_port = self.kv_port + 66  # and the next one for replays

    def tearDown(self):
        self.show_logs_of_failure(self.service)

    def start(self, *options, **environment):
        os.environ.update(environment)
        self.addCleanup(lambda: [os.environ.pop(name) for name in environment])
        group = self.service.start_group("--kv-port", self.kv_port, *options)
        # A decode node brings each rank to open all the sockets that it ever opens.
        status, _, response = self.service.prefill(SHORT)
        self.assertEqual(status, 200, response)
        code, decoded = self.service.decode(response, "--transport", "tcp")
        self.assertEqual(code, 0, decoded)
        return group

    def seen(self, group):
        """(row of the table, where the socket can be reached) of each socket."""
        found = set()
        for address, port in listeners(self.service.coordinator.pid):
            found.add((self.name_of_coordinators(port), reach(address)))
        for address, _ in listeners(group.pid):
            found.add(("mpirun's messages" if address.is_unspecified else "mpirun and its ranks (PMIx)", reach(address)))
        for rank, pid in self.service.ranks().items():
            for address, port in listeners(pid):
                if port == self.kv_port + rank:
                    found.add(("KV server of rank r", reach(address)))
                elif rank == 0 and port - self.events_port in (0, 1):
                    found.add((["KV cache events", "KV cache events, replays"][port - self.events_port], reach(address)))
                else:
                    found.add(("Open MPI between ranks" if address.is_unspecified else "UCX's workers", reach(address)))
        return found

    def name_of_coordinators(self, port):
        return {self.service.http_port: "coordinator, HTTP", self.service.group_port: "coordinator, groups"}.get(port, "coordinator, probes")

    def check_table(self, *options):
        """Checks each socket against the table. Returns the names of the rows without a socket."""
        self.service.coordinator_options = "--admin-port", "0"
        self.service.restart_coordinator()
        rows = documented()
        seen = self.seen(self.start("--kv-events-endpoint", f"tcp://127.0.0.1:{self.events_port}",
                                    "--kv-events-replay-endpoint", f"tcp://127.0.0.1:{self.events_port + 1}", *options))
        for name, where in seen:
            self.assertIn(name, rows)
            # An address that an option sets is 127.0.0.1 here, because a machine with one interface has no other.
            self.assertIn(where, {ALL: (ALL,), EACH: (EACH, LOOPBACK), LOOPBACK: (LOOPBACK,)}.get(rows[name][1], (LOOPBACK,)), name)
        return set(rows) - {name for name, _ in seen}

    # The watch's socket closes as soon as all ranks are there, and NCCL's need GPUs.
    NEVER_SEEN = {"rank 0's watch", "NCCL"}

    def test_every_socket_is_in_the_table_and_reached_from_where_it_says(self):
        self.assertEqual(self.check_table(), self.NEVER_SEEN | {"UCX's workers"})

    def test_with_ucx_its_workers_are_in_the_table_too(self):
        self.assertEqual(self.check_table("--kv-transport", "ucx"), self.NEVER_SEEN)

    def test_the_settings_for_one_host_leave_nothing_of_a_rank_to_others(self):
        self.service.byte_transfer_layers = "self,vader"
        group = self.start()
        self.assertEqual({where for name, where in self.seen(group) if name != "mpirun's messages"}, {LOOPBACK})

    def test_ranges_for_firewalls_are_kept(self):
        first = self.kv_port + 2
        self.service.mpirun_options = ["--mca", "btl_tcp_port_min_v4", str(first), "--mca", "btl_tcp_port_range_v4", "8",
                                       "--mca", "btl_tcp_disable_family", "6"]
        self.start("--kv-transport", "ucx", UCX_TCP_PORT_RANGE=f"{first + 8}-{first + 63}", UCX_NET_DEVICES="lo")
        ports = {port for pid in self.service.ranks().values() for address, port in listeners(pid) if address.version == 4}
        ports -= {self.kv_port, self.kv_port + 1}
        self.assertTrue(ports)
        self.assertEqual({port for port in ports if not first <= port < first + 64}, set())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(verbosity=2)
