# SPDX-License-Identifier: Apache-2.0
"""The service of tests/e2e with its coordinator, ranks and decode nodes on separate hosts."""
import contextlib
import http.client
import os
import signal

from network import Network
from service import BIN_DIR, Service, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
COORDINATOR, A, B, DECODE = "coordinator", "a", "b", "decode"


class ServiceOnHosts(Service):
    """mpirun runs on host a; ranks alternate between a and b."""

    def __init__(self):
        self.network = Network(COORDINATOR, A, B, DECODE)
        self.address = self.network.address[COORDINATOR]
        self.coordinator_name = f"{COORDINATOR}.test"
        self.decode_command = self.network.command(DECODE, os.path.join(BIN_DIR, "millrace-decode"))
        # The address of the host that a rank runs on, which its manifest and the other ranks need.
        self.rank_options = "--kv-host \"$(hostname -I | cut -d ' ' -f 1)\""
        try:
            super().__init__()
        except BaseException:
            self.network.close()
            raise

    @property
    def mpirun_options(self):
        hosts = [self.network.address[name] for name in (A, B)]
        return ["--host", ",".join(f"{host}:8" for host in hosts), "--map-by", "node",
                "--mca", "plm_rsh_agent", os.path.join(HERE, "launch-agent"),
                # After these times, in seconds, mpirun gives up a host that it can no longer reach.
                "--mca", "oob_tcp_keepalive_time", "2", "--mca", "oob_tcp_keepalive_intvl", "1", "--mca", "oob_tcp_keepalive_probes", "3",
                "--mca", "oob_tcp_if_include", "net0", "--mca", "btl_tcp_if_include", "net0"]

    def _start(self, name, command):
        host = COORDINATOR if name == "coordinator" else A
        os.environ["MR_HOSTS"] = " ".join(f"{self.network.address[name]}={self.network.namespace(name)}={name}" for name in self.network.names)
        return super()._start(name, self.network.command(host, *command))

    def connection(self, timeout_s, port=None):
        """A connection from the decode node's host."""
        port = port or self.http_port
        connection = http.client.HTTPConnection(self.address, port, timeout=timeout_s)
        connection.sock = self.network.connect(DECODE, (self.address, port), timeout_s)
        return connection

    def move_coordinator(self, number):
        """Kills the coordinator and starts it again on a host with the same name and another address."""
        self.coordinator.kill()
        self.coordinator.wait(20)
        os.remove(self._ports_path)
        self.network.move(COORDINATOR, number)
        self.address = self.network.address[COORDINATOR]
        self._start_coordinator()

    def close(self):
        super().close()
        # Processes that mpirun starts on another host are not in its process group.
        for pid in self.network.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until("the end of all processes on the hosts", lambda: not self.network.processes(), 20)
        self.network.close()
