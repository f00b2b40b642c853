"""docs/operations.md, command by command, on three Debian machines made for the purpose.

Every ```sh block of the page is run as it stands, in the order of the page, by root's shell: on the machine that the
block's info string names (`sh on=10.0.0.2`; several with commas; `sh on=build` is the machine that builds), else on the
first; those on=containers are containers_test.py's. What a command prints goes to the log, and a command that fails ends the test. ```text blocks are no commands.

The machines are booted with systemd in containers, on a network of their own. Needs root and the tools below, and says so
when it is skipped.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from machine import BUILD, PAGE, ROOT, command_blocks, make_debian, make_packages, run

TOOLS = ("cpack", "dpkg-shlibdeps", "mmdebstrap", "systemd-nspawn", "nsenter", "ip", "ssh-keygen")
MACHINES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
# Of Debian, beside ours: what the page asks for, and what somebody who types its commands has.
PACKAGES = "systemd-sysv,dbus,iproute2,prometheus,curl,openssh-server,openssh-client"
# Debian has no Grafana. Its files are put where the page says, and this is restarted.
GRAFANA = "[Service]\nExecStart=/bin/sleep infinity\n"


class Page(unittest.TestCase):
    def test_every_command_is_one_that_is_tried(self):
        fenced = False
        for number, line in enumerate(PAGE.read_text().splitlines(), 1):
            if line.startswith("```"):
                fenced = not fenced
                if fenced:
                    self.assertRegex(line, r"^```(sh( on=(build|containers|[0-9.,]+))?|text|json)$", f"line {number}")
            if not fenced:
                self.assertIsNone(re.match(r" {4,}(\./)?(poseidon|docker|sudo|apt|systemctl|cmake|curl|sed|tests/|deploy/)", line),
                                  f"line {number} is a command in no ```sh block: {line}")
        for block in command_blocks(MACHINES[0]):
            for place in block.where:
                self.assertIn(place, (*MACHINES, "build", "containers"), f"line {block.line}")


def missing_tools():
    return [tool for tool in TOOLS if shutil.which(tool) is None]


@unittest.skipIf(os.geteuid() != 0, "installing packages and starting containers takes root")
@unittest.skipIf(missing_tools(), f"not installed: {', '.join(missing_tools())} (deploy/dependencies.sh --tests)")
class Operations(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="poseidon-operations-", dir=BUILD))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.leaders = {}
        self.log = open(BUILD / "operations.log", "w", encoding="utf-8")
        self.addCleanup(self.log.close)

    def make_network(self):
        """One namespace with a bridge; each machine on it by a pair of interfaces."""
        tag = f"posop{os.getpid() % 10000}"
        self.bridge_space = tag
        ip = lambda *words: run(self, "ip", *words)
        ip("netns", "add", tag)
        self.addCleanup(subprocess.run, ["ip", "netns", "del", tag], check=False)
        ip("-n", tag, "link", "add", "br0", "type", "bridge")
        ip("-n", tag, "link", "set", "br0", "up")
        self.spaces = {}
        for i, address in enumerate(MACHINES):
            space = f"{tag}m{i}"
            ip("netns", "add", space)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", space], check=False)
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "add", "host0", "type", "veth", "peer", "name", f"p{i}", "netns", tag)
            ip("-n", tag, "link", "set", f"p{i}", "master", "br0", "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "host0")
            ip("-n", space, "link", "set", "host0", "up")
            self.spaces[address] = space

    def make_tree(self):
        tree = self.folder / "tree"
        packages = self.folder / "packages"
        make_packages(self, packages)
        # Their dependencies, but not they themselves: those the page installs.
        depends = {re.split(r"[ (|]", word.strip())[0]
                   for package in packages.glob("*.deb")
                   for word in run(self, "dpkg-deb", "-f", package, "Depends").split(",")}
        needed = ",".join(sorted(d for d in depends if d and not d.startswith("poseidon")))
        make_debian(self, tree, f"--include={PACKAGES},{needed}")
        shutil.copytree(packages, tree / "root/packages")
        shutil.copytree(ROOT / "tests/data/digits", tree / "srv/digits")
        shutil.copytree(ROOT / "dashboards", tree / "root/dashboards")
        (tree / "etc/systemd/system/grafana-server.service").write_text(GRAFANA)
        (tree / "etc/grafana/provisioning").mkdir(parents=True)
        self.let_root_copy_between(tree)
        return tree

    def let_root_copy_between(self, tree):
        """As an operator's keys would; made for this test, the same on all three machines."""
        keys = tree / "root/.ssh"
        keys.mkdir(mode=0o700, exist_ok=True)
        run(self, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / "id_ed25519")
        shutil.copy(keys / "id_ed25519.pub", keys / "authorized_keys")
        (keys / "config").write_text("StrictHostKeyChecking accept-new\n")

    def boot(self, tree):
        for address in MACHINES:
            log = open(self.folder / f"{address}.log", "w", encoding="utf-8")
            self.addCleanup(log.close)
            machine = subprocess.Popen(
                ["systemd-nspawn", "--quiet", "--directory", tree, "--volatile=overlay", "--boot", "--register=no",
                 "--keep-unit", f"--machine=m{address[-1]}", f"--network-namespace-path=/run/netns/{self.spaces[address]}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self.addCleanup(self.stop, machine)
            self.leaders[address] = machine
        for address in MACHINES:
            deadline = time.monotonic() + 90
            while True:
                state = subprocess.run([*self.enter(address), "systemctl", "is-system-running"], capture_output=True,
                                       text=True, check=False) if self.leader(address) else None
                if state is not None and state.stdout.strip() in ("running", "degraded"):
                    break
                if time.monotonic() > deadline or self.leaders[address].poll() is not None:
                    self.fail(f"{address} did not boot: " + (self.folder / f"{address}.log").read_text()[-2000:])
                time.sleep(0.3)

    def stop(self, machine):
        machine.terminate()
        try:
            machine.wait(30)
        except subprocess.TimeoutExpired:
            machine.kill()
            machine.wait(30)

    def leader(self, address):
        """The machine's init."""
        children = pathlib.Path(f"/proc/{self.leaders[address].pid}/task/{self.leaders[address].pid}/children")
        words = children.read_text().split() if children.exists() else []
        return words[0] if words else None

    def enter(self, address):
        return ["nsenter", "-t", self.leader(address), "-m", "-u", "-i", "-n", "-p", "-C", "--root", "env", "-i",
                "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "TERM=dumb"]

    def execute(self, block, place):
        command = ["bash", "-euo", "pipefail", "-c", block.text]
        where = {"cwd": ROOT} if place == "build" else {}
        if place != "build":
            command = [*self.enter(place), *command[:-1], f"cd\n{block.text}"]
        self.log.write(f"==== line {block.line}, on {place}\n{block.text}----\n")
        begin = time.monotonic()
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, timeout=300, check=False, **where)
        self.log.write(f"{result.stdout}---- exit status {result.returncode}, {time.monotonic() - begin:.1f} s\n")
        self.log.flush()
        if result.returncode != 0:
            journal = "" if place == "build" else subprocess.run(
                [*self.enter(place), "journalctl", "--no-pager", "-n", "40", "-u", "poseidon-*"], capture_output=True,
                text=True, check=False).stdout
            self.fail(f"{PAGE.name}, line {block.line}, on {place}: exit status {result.returncode}\n{block.text}----\n"
                      f"{result.stdout[-3000:]}\n{journal}")

    def test_every_command_of_the_page(self):
        self.make_network()
        self.boot(self.make_tree())
        for block in command_blocks(MACHINES[0]):
            for place in block.where:
                if place != "containers":
                    self.execute(block, place)


if __name__ == "__main__":
    unittest.main(verbosity=2)
