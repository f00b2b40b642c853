"""Hosts on one machine: network namespaces that are joined by a bridge, and nothing else.

A host has one network card, eth0: a veth whose other end is in the bridge. Nothing is shaped unless a rate is given: then
both ends of each veth are, so that a host sends and receives at that rate, each way by itself. Every name begins with a
prefix and the process id of its run, so that runs do not meet, and what a killed run left is found and removed.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess

NAMESPACE_PREFIX = "poseidon-bench-"
LINK_PREFIX = "psdp"  # of network interfaces, whose names have 15 characters at most
INTERFACE = "eth0"
NO_CARD = "02:00:00:00:00:fe"  # an address that no card has
BURST_BYTES = 64 << 10    # what a shaped card may send at once: one packet of the stack before it is segmented
QUEUE_SECONDS = 0.05      # what waits before a shaped card at most; more is dropped, as in a switch


class HostsError(Exception):
    """The hosts cannot be made; the message says what to do."""


def _run(*command, check=True):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        raise HostsError(f"{' '.join(command)} did not end within 30 s") from None
    if check and done.returncode != 0:
        raise HostsError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}; namespaces need root "
                         "(or a container with NET_ADMIN and SYS_ADMIN)")
    return done.stdout


def _ip(*arguments, check=True):
    return _run("ip", *arguments, check=check)


def why_not():
    """Why this machine cannot have such hosts; None when it can."""
    for command in ("ip", "tc"):
        if shutil.which(command) is None:
            return f"the command {command} is missing: deploy/dependencies.sh --bench (package iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root: run this as root"
    return None


def _alive(process_id):
    return os.path.exists(f"/proc/{process_id}")


def _remove(process_id):
    for line in _ip("netns", "list", check=False).splitlines():
        name = line.split()[0]
        if name.startswith(f"{NAMESPACE_PREFIX}{process_id}-"):
            # What was started inside and left its process group (mpirun's daemons) ends with its host.
            for process in _ip("netns", "pids", name, check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            _ip("netns", "delete", name, check=False)  # its veth goes with it, and so the other end
    for line in _ip("-o", "link", "show", check=False).splitlines():
        found = re.match(rf"\d+: ({LINK_PREFIX}{process_id}[bv]\d*)[@:]", line)
        if found:
            _ip("link", "delete", found[1], check=False)


def remove_stale():
    """What runs left whose process is gone."""
    found = re.findall(rf"^{NAMESPACE_PREFIX}(\d+)-", _ip("netns", "list"), re.MULTILINE)
    found += re.findall(rf"^\d+: {LINK_PREFIX}(\d+)b[@:]", _ip("-o", "link", "show"), re.MULTILINE)
    for process_id in sorted(set(found)):
        if not _alive(process_id):
            print(f"removing the namespaces that run {process_id} left", flush=True)
            _remove(process_id)


class NamespaceHosts:
    """`with NamespaceHosts(4) as hosts:` the hosts are there inside and gone after it, whatever happened. With `mbit`
    every card is shaped to that many Mbit/s each way; `congestion_control` is TCP's, default this machine's."""

    interface = INTERFACE

    def __init__(self, count, mbit=None, congestion_control=None):
        self.count = count
        self._mbit = mbit
        self._congestion_control = congestion_control
        self._bridge = f"{LINK_PREFIX}{os.getpid()}b"

    @staticmethod
    def _veth(host):
        return f"{LINK_PREFIX}{os.getpid()}v{host}"

    @staticmethod
    def name(host):
        return f"{NAMESPACE_PREFIX}{os.getpid()}-{host}"

    def address(self, host):
        return f"10.213.0.{host + 1}"  # no other network is seen from inside, nor this one from outside

    def cut(self, host):
        """From all others; nobody is told: packets just do not arrive."""
        _ip("link", "set", self._veth(host), "nomaster")

    def mend(self, host):
        _ip("link", "set", self._veth(host), "master", self._bridge)

    def cut_between(self, one, other):
        """These two alone: each sends to a card that is not there."""
        for host, peer in ((one, other), (other, one)):
            _ip("-n", self.name(host), "neighbour", "replace", self.address(peer), "lladdr", NO_CARD, "dev", INTERFACE,
                "nud", "permanent")

    def mend_between(self, one, other):
        for host, peer in ((one, other), (other, one)):
            _ip("-n", self.name(host), "neighbour", "delete", self.address(peer), "dev", INTERFACE)

    def card_bytes(self, host):
        """(sent, received) by a host since it was made: what its card gave to the bridge and had from it."""
        counters = pathlib.Path(f"/sys/class/net/{self._veth(host)}/statistics")
        return tuple(int((counters / name).read_text()) for name in ("rx_bytes", "tx_bytes"))

    def sent_bytes(self):
        """Of all hosts together."""
        return sum(self.card_bytes(host)[0] for host in range(self.count))

    def command(self, host, arguments):
        return ["ip", "netns", "exec", self.name(host), *arguments]

    def __enter__(self):
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("link", "set", self._bridge, "addrgenmode", "none", "up")
            for host in range(self.count):
                self._add(host)
        except BaseException:
            _remove(os.getpid())
            raise
        return self

    def _add(self, host):
        name, veth = self.name(host), self._veth(host)
        _ip("netns", "add", name)
        _ip("link", "add", veth, "type", "veth", "peer", "name", INTERFACE, "netns", name)
        _ip("link", "set", veth, "master", self._bridge, "addrgenmode", "none", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        # No IPv6 address of its own: some peers would take it for the address of the host.
        _ip("-n", name, "link", "set", INTERFACE, "addrgenmode", "none", "up")
        _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", INTERFACE)
        if self._congestion_control is not None:
            # By the route: the setting of a namespace may only be what the kernel was built to allow anybody.
            _ip("-n", name, "route", "change", "10.213.0.0/24", "dev", INTERFACE, "scope", "link", "src", self.address(host),
                "congctl", self._congestion_control)
        if self._mbit is not None:
            queue = max(2 * BURST_BYTES, int(self._mbit * 1e6 / 8 * QUEUE_SECONDS))
            for where, card in (("-n", name), INTERFACE), ((), veth):  # what it sends, what it receives
                _run("tc", *where, "qdisc", "add", "dev", card, "root", "tbf", "rate", f"{self._mbit}mbit",
                     "burst", str(BURST_BYTES), "limit", str(queue))

    def __exit__(self, *_):
        _remove(os.getpid())


class LoopbackHosts:
    """No namespaces: all on 127.0.0.1. For tests."""

    interface = "lo"

    def __init__(self, count):
        self.count = count

    def address(self, _host):
        return "127.0.0.1"

    def command(self, _host, arguments):
        return arguments

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
