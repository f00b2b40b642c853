"""Hosts on one machine: network namespaces that are joined by a bridge, and nothing else.

A host has one network card, eth0: a veth whose other end is in the bridge. The bridge is in a namespace of its own, the
switch, where this machine's firewall (a Docker engine's, say) has no say. Nothing is shaped unless a rate is given: then
both ends of each veth are, so that a host sends and receives at that rate, each way by itself. Every name begins with a
prefix and the process id of its run, so that runs do not meet, and what a killed run left is found and removed.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

NAMESPACE_PREFIX = "poseidon-bench-"
SKIPPED = 77              # exit status where no hosts can be made, which ctest calls skipped
BRIDGE = "bridge"
INTERFACE = "eth0"
NO_CARD = "02:00:00:00:00:fe"  # an address that no card has
# What a shaped card may send at once: the largest packet of the stack, which counts the headers of all segments that it
# stands for. A card that may send less segments such packets itself: 30 times the packets, each with a timer.
BURST_BYTES = 128 << 10
LEAST_SEGMENTS = 44       # of a packet that TCP hands to a shaped card, if it has as much to send: what it does at high rates
# What waits for a shaped card at most. A host's own queue drops nothing, as TCP sees how long it is; a switch has so much
# memory for a port, and less for slow ones: more is dropped.
HOST_QUEUE_BYTES = 32 << 20
SWITCH_QUEUE_BYTES, SWITCH_QUEUE_SECONDS = 4 << 20, 0.05
RETRANSMIT_MS, MOST_RETRANSMIT_MS = 200, 60_000  # Linux's least time before TCP sends again what was not acknowledged


class HostsError(Exception):
    """The hosts cannot be made; the message says what to do."""


def _run(*command, check=True, text=""):
    """`text` is its input."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30, check=False)
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


def exit_unless_possible(mbit=None, congestion_control=None):
    """Removes what killed runs left and tries one host; where that cannot be, says why and exits."""
    reason = why_not()
    if reason is None:
        remove_stale()
        try:
            with NamespaceHosts(1, mbit, congestion_control):
                return
        except HostsError as error:
            reason = error
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


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
            _ip("netns", "delete", name, check=False)  # its cards go with it


def remove_stale():
    """What runs left whose process is gone."""
    found = re.findall(rf"^{NAMESPACE_PREFIX}(\d+)-", _ip("netns", "list"), re.MULTILINE)
    for process_id in sorted(set(found)):
        if not _alive(process_id):
            print(f"removing the namespaces that run {process_id} left", flush=True)
            _remove(process_id)


class NamespaceHosts:
    """`with NamespaceHosts(4) as hosts:` the hosts are there inside and gone after it, whatever happened. With `mbit`
    every card is shaped to that many Mbit/s each way; `congestion_control` is TCP's, default this machine's. `slow` is the
    factor of slow motion: cards stand for ones of `mbit` * `slow`, and TCP's clock is slowed like them."""

    interface = INTERFACE

    def __init__(self, count, mbit=None, congestion_control=None, slow=1):
        self.count = count
        self._slow = slow
        self._mbit = mbit
        self._congestion_control = congestion_control
        self._switch = self.name("switch")

    @staticmethod
    def _veth(host):
        """The switch's end of a host's cable."""
        return f"host{host}"

    @staticmethod
    def name(host):
        return f"{NAMESPACE_PREFIX}{os.getpid()}-{host}"

    def address(self, host):
        return f"10.213.0.{host + 1}"  # no other network is seen from inside, nor this one from outside

    @staticmethod
    def _card_address(host):
        return f"02:00:00:01:{host >> 8:02x}:{host & 255:02x}"

    def cut(self, host):
        """From all others; nobody is told: packets just do not arrive."""
        _ip("-n", self._switch, "link", "set", self._veth(host), "nomaster")

    def mend(self, host):
        _ip("-n", self._switch, "link", "set", self._veth(host), "master", BRIDGE)

    def cut_between(self, one, other):
        """These two alone: each sends to a card that is not there."""
        for host, peer in ((one, other), (other, one)):
            _ip("-n", self.name(host), "neighbour", "replace", self.address(peer), "lladdr", NO_CARD, "dev", INTERFACE,
                "nud", "permanent")

    def mend_between(self, one, other):
        for host in (one, other):
            self._introduce(host)

    def card_bytes(self, host):
        """(sent, received) by a host since it was made: what its card gave to the bridge and had from it."""
        card, = json.loads(_ip("-n", self._switch, "-s", "-j", "link", "show", "dev", self._veth(host)))
        return tuple(card["stats64"][name]["bytes"] for name in ("rx", "tx"))

    def sent_bytes(self):
        """Of all hosts together."""
        return sum(self.card_bytes(host)[0] for host in range(self.count))

    def command(self, host, arguments):
        return ["ip", "netns", "exec", self.name(host), *arguments]

    def __enter__(self):
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", BRIDGE, "type", "bridge")
            # Where this machine's firewall looks into bridges, it need not look into this one.
            _run("ip", "netns", "exec", self._switch, "sysctl", "-q", "-w", "net.bridge.bridge-nf-call-iptables=0",
                 check=False)
            _ip("-n", self._switch, "link", "set", BRIDGE, "addrgenmode", "none", "up")
            for host in range(self.count):
                self._add(host)
            for host in range(self.count):
                self._introduce(host)
        except BaseException:
            _remove(os.getpid())
            raise
        return self

    def _add(self, host):
        name, veth = self.name(host), self._veth(host)
        _ip("netns", "add", name)
        _ip("link", "add", veth, "netns", self._switch, "type", "veth", "peer", "name", INTERFACE, "address",
            self._card_address(host), "netns", name)
        _ip("-n", self._switch, "link", "set", veth, "master", BRIDGE, "addrgenmode", "none", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        # No IPv6 address of its own: some peers would take it for the address of the host.
        _ip("-n", name, "link", "set", INTERFACE, "addrgenmode", "none", "up")
        _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", INTERFACE)
        # Debian's defaults, whatever this machine has.
        _run(*self.command(host, ["sysctl", "-q", "-w", "net.ipv4.tcp_rmem=4096 131072 6291456",
                                  "net.ipv4.tcp_wmem=4096 16384 4194304"]))
        # By the route: the setting of a namespace may only be what the kernel was built to allow anybody. In slow motion
        # packets wait in queues for longer than TCP's patience of real time, and all would be sent twice.
        of_route = ["congctl", self._congestion_control] if self._congestion_control is not None else []
        if self._slow > 1:
            of_route += ["rto_min", f"{min(int(RETRANSMIT_MS * self._slow), MOST_RETRANSMIT_MS)}ms"]
        if of_route:
            _ip("-n", name, "route", "change", "10.213.0.0/24", "dev", INTERFACE, "scope", "link", "src", self.address(host),
                *of_route)
        if self._mbit is not None:
            self.shape(host, self._mbit)

    def _introduce(self, host):
        """To all others: what hosts would find out by asking around counts against one limit of the whole machine, which
        33 hosts are above; what is told does not."""
        lines = "".join(f"neighbour replace {self.address(peer)} lladdr {self._card_address(peer)} dev {INTERFACE} nud "
                        "permanent\n" for peer in range(self.count) if peer != host)
        _run("ip", "-n", self.name(host), "-batch", "-", text=lines)

    def _cards(self, host):
        """Where tc shapes what a host sends, and what it receives."""
        return ((self.name(host), INTERFACE), (self._switch, self._veth(host)))

    def shape(self, host, mbit):
        """From now on, in place of an earlier rate."""
        # At the low rates of slow motion TCP would make small packets, each of which costs this machine a timer: a
        # packet has at least so many segments, and may take all of the window.
        _run(*self.command(host, ["sysctl", "-q", "-w", f"net.ipv4.tcp_min_tso_segs={LEAST_SEGMENTS}",
                                  "net.ipv4.tcp_tso_win_divisor=1"]))
        in_switch = min(SWITCH_QUEUE_BYTES, max(2 * BURST_BYTES, int(mbit * self._slow * 1e6 / 8 * SWITCH_QUEUE_SECONDS)))
        for (where, card), queue in zip(self._cards(host), (HOST_QUEUE_BYTES, in_switch)):
            _run("tc", "-n", where, "qdisc", "replace", "dev", card, "root", "tbf", "rate", f"{mbit}mbit", "burst",
                 str(BURST_BYTES), "limit", str(queue))

    def unshape(self, host):
        for where, card in self._cards(host):
            _run("tc", "-n", where, "qdisc", "delete", "dev", card, "root")

    def __exit__(self, *_):
        _remove(os.getpid())


class LoopbackHosts:
    """No namespaces: all on 127.0.0.1. For tests."""

    interface = "lo"

    def __init__(self, count):
        self.count = count

    def address(self, _host):
        return "127.0.0.1"

    def card_bytes(self, _host):
        """All share one card: what everybody sent to everybody, and whatever else this machine did there."""
        for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == self.interface:
                return int(counters.split()[8]), int(counters.split()[0])
        raise HostsError(f"/proc/net/dev has no {self.interface}")

    def command(self, _host, arguments):
        return arguments

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
