# SPDX-License-Identifier: Apache-2.0
"""Hosts as network namespaces, with a thread as the network that carries packets between them.

Every host has one interface, `net0`, whose other end is here (TUN), so delay, loss and silence can be set for each pair of hosts
and changed at any time. A cut pair receives nothing from each other, no RST and no ICMP, as when a cable is pulled. No kernel
qdisc is needed (many kernels lack netem). Hosts have a hostname of their own and share everything else: files, processes,
/dev/shm.

Needs root and /dev/net/tun; unavailable() says what is missing.
"""
import contextlib
import ctypes
import fcntl
import heapq
import ipaddress
import os
import random
import selectors
import shutil
import socket
import struct
import subprocess
import threading
import time

TUNSETIFF = 0x400454CA  # linux/if_tun.h
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
MTU = 9000  # means fewer packets for a switch in Python
SUBNET = ipaddress.ip_network("10.213.0.0/24")

_libc = ctypes.CDLL(None, use_errno=True)


def unavailable():
    """Why there can be no hosts here, or None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun"
    name = f"mr{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespace: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


@contextlib.contextmanager
def inside(namespace):
    """Puts the calling thread into that network namespace; sockets that it opens there stay there."""
    with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{namespace}") as other:
        _enter(other)
        try:
            yield
        finally:
            _enter(own)


def _enter(namespace):
    if _libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Link:
    """One direction between two hosts."""

    def __init__(self):
        self.delay_s = 0.0
        self.loss = 0.0
        self.cut = False
        self.lost = 0  # packets


class Network:
    """The hosts in `names` get the addresses .11, .12 and so on."""

    def __init__(self, *names):
        self.names = names
        self.address = {name: str(SUBNET[11 + number]) for number, name in enumerate(names)}
        self._links = {(a, b): Link() for a in names for b in names if a != b}
        self._wakeup = os.pipe()
        self._ends = {}
        self._random = random.Random(1)
        self._stop = False
        self._route = {}
        try:
            for name in names:
                self._add_host(name)
        except BaseException:
            self._remove_hosts()
            raise
        self.name_hosts()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def namespace(self, name):
        return f"mr{os.getpid()}-{name}"

    def _add_host(self, name):
        namespace = self.namespace(name)
        subprocess.run(["ip", "netns", "add", namespace], check=True)
        with inside(namespace):
            end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", b"net0", IFF_TUN | IFF_NO_PI))
        self._ends[name] = end
        self._ip(name, "link", "set", "lo", "up")
        self._ip(name, "link", "set", "net0", "mtu", str(MTU), "up")
        self._ip(name, "address", "add", f"{self.address[name]}/{SUBNET.prefixlen}", "dev", "net0")
        self._route[socket.inet_aton(self.address[name])] = name

    def _ip(self, name, *words):
        subprocess.run(["ip", "-n", self.namespace(name), *words], check=True)

    def move(self, name, number):
        """Replaces the host's address with another one."""
        address = str(SUBNET[number])
        self._ip(name, "address", "flush", "dev", "net0")
        self._ip(name, "address", "add", f"{address}/{SUBNET.prefixlen}", "dev", "net0")
        del self._route[socket.inet_aton(self.address[name])]
        self._route[socket.inet_aton(address)] = name
        self.address[name] = address

        self.name_hosts()

    def name_hosts(self):
        """Makes the others known to every host as NAME.test (/etc/netns), including processes that already run."""
        text = "127.0.0.1 localhost\n" + "".join(f"{address} {name}.test\n" for name, address in self.address.items())
        for name in self.names:
            os.makedirs(f"/etc/netns/{self.namespace(name)}", exist_ok=True)
            with open(f"/etc/netns/{self.namespace(name)}/hosts", "w") as file:
                file.write(text)

    def between(self, a, b):
        return self._links[a, b], self._links[b, a]

    def slow(self, a, b, delay_s, loss=0.0):
        for link in self.between(a, b):
            link.delay_s, link.loss = delay_s, loss

    def cut(self, a, b):
        for link in self.between(a, b):
            link.cut = True

    def heal(self, a, b):
        for link in self.between(a, b):
            link.cut = False

    def vanish(self, name):
        """Cuts the host off from all others."""
        for other in self.names:
            if other != name:
                self.cut(name, other)

    def return_(self, name):
        for other in self.names:
            if other != name:
                self.heal(name, other)

    def command(self, name, *words):
        """The command line that runs `words` on that host: ip netns gives it the host's network and its files of /etc/netns."""
        return [os.path.join(os.path.dirname(os.path.abspath(__file__)), "on-host"), self.namespace(name), name, *map(str, words)]

    def connect(self, name, address, timeout_s):
        """A TCP connection from that host."""
        with inside(self.namespace(name)):
            return socket.create_connection(address, timeout_s)

    def _carry(self):
        with selectors.DefaultSelector() as selector:
            for name, end in self._ends.items():
                selector.register(end, selectors.EVENT_READ, name)
            selector.register(self._wakeup[0], selectors.EVENT_READ)
            waiting, count = [], 0
            while not self._stop:
                timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
                for key, _ in selector.select(timeout):
                    for _ in range(64):  # then it is the others' turn
                        if key.data is None or (packet := self._read(key.fd)) is None:
                            break
                        to = self._route.get(packet[16:20])  # destination of an IPv4 header
                        link = self._links.get((key.data, to))
                        if link is None:
                            continue
                        if link.cut or (link.loss and self._random.random() < link.loss):
                            link.lost += 1
                            continue
                        if link.delay_s == 0:
                            self._write(to, packet)
                        else:
                            count += 1
                            heapq.heappush(waiting, (time.monotonic() + link.delay_s, count, key.data, to, packet))
                while waiting and waiting[0][0] <= time.monotonic():
                    _, _, source, to, packet = heapq.heappop(waiting)
                    if not self._links[source, to].cut:
                        self._write(to, packet)

    @staticmethod
    def _read(end):
        try:
            return os.read(end, MTU)
        except OSError:  # no packet is there, or the interface is down
            return None

    def _write(self, name, packet):
        with contextlib.suppress(OSError):  # a full queue or an interface that is down loses the packet, as on a real network
            os.write(self._ends[name], packet)

    def close(self):
        self._stop = True
        os.write(self._wakeup[1], b"x")
        self._thread.join()
        self._remove_hosts()
        for end in *self._wakeup, *self._ends.values():
            os.close(end)

    def _remove_hosts(self):
        for name in self.names:
            shutil.rmtree(f"/etc/netns/{self.namespace(name)}", ignore_errors=True)
            subprocess.run(["ip", "netns", "del", self.namespace(name)], capture_output=True)
        with contextlib.suppress(OSError):
            os.rmdir("/etc/netns")

    def processes(self):
        out = [subprocess.run(["ip", "netns", "pids", self.namespace(name)], capture_output=True, text=True, check=True).stdout for name in self.names]
        return [int(pid) for text in out for pid in text.split()]
