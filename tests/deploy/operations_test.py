"""The pages for operators (PAGES in machine.py), command by command, on three Debian machines made for the purpose.

Every ```sh block of the pages is run as it stands, in the order of the pages, by root's shell: on the machine that the
block's info string names (`sh on=10.0.0.2`; several with commas; `sh on=build` is the machine that builds), else on the
first; those on=containers are containers_test.py's. What a command prints goes to the log, and a command that fails ends the test.

What the pages show otherwise is held against those: a ```text block is a synopsis, every form and option of which is in one of
them; a ```json block is part of a job that `poseidon plan` takes; a command within a sentence is in one of them, too, or in
HERE, or in NOT_RUN with the reason.

The machines are booted with systemd in containers, on a network of their own. Needs root and the tools below, and says so
when it is skipped.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from machine import BUILD, PAGES, ROOT, command_blocks, make_debian, make_next_version, make_packages, remove_tree, run

TOOLS = ("cpack", "dpkg-shlibdeps", "mmdebstrap", "systemd-nspawn", "nsenter", "ip", "ssh-keygen")
MACHINES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
# Of Debian, beside ours: what the pages ask for, and what somebody who types its commands has.
PACKAGES = "systemd-sysv,dbus,iproute2,prometheus,curl,openssh-server,openssh-client"
# Debian has no Grafana. Its files are put where monitor.md says, and this is restarted.
GRAFANA = "[Service]\nExecStart=/bin/sleep infinity\n"
PROGRAMS = r"(?:poseidon(?:-[a-z]+)*|docker|systemctl|systemd-analyze|journalctl|apt|ldconfig)"
# Commands of sentences, by how they are run on this machine, in a folder with job.json: "..." filled in, and short.
HERE = {
    "poseidon-server --help": "poseidon-server --help",
    "poseidon local ... --run-dir DIR --metrics":
        "poseidon local job.json --workers 1 --servers 1 --run-dir run --metrics\n"
        "grep 127.0.0.1: run/cluster/coordinator/prometheus-targets.json",
    "poseidon local JOB.json --run-dir DIR":
        "poseidon local job.json --workers 1 --servers 1 --run-dir again\n"
        "poseidon local job.json --workers 1 --servers 1 --run-dir again\n"
        "ls again/model.safetensors again/earlier/model.safetensors",
    "poseidon local job.json --workers 1 --servers 4":
        "poseidon local job.json --workers 1 --servers 4 --run-dir four | tee four.txt\n"
        "grep 'servers: 4;' four.txt && test -f four/model.safetensors",
    "poseidon-bench-transport --wire-dtype bf16":
        "poseidon-bench-transport --wire-dtype bf16 --mib 4 --rounds 1 --iterations 1",
}
NOT_RUN = {
    "poseidon-worker --device cuda:0": "takes a GPU; tests/process/cuda_test.py",
    "poseidon local job.json --workers 2 --servers 1 --device cuda:0": "takes a GPU; tests/process/cuda_test.py",
    "ldconfig -p | grep -E 'libcuda|libcublasLt|libcudnn'": "finds nothing without NVIDIA's driver and libraries",
    "apt remove 'poseidon-*'": "ends everything; tests/deploy/inside.sh",
    "apt purge 'poseidon-*'": "ends everything; tests/deploy/inside.sh",
    "systemd-analyze security": "packages_test.py, with what is allowed",
}


def lines_with_blocks():
    """(page, number, line, info string of the block that it is in or "")."""
    for page in PAGES:
        info = ""
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.startswith("```"):
                info = "" if info else line[3:]
            else:
                yield page.name, number, line, info


def parts(command):
    """(program and subcommands, options without their values) of one command or synopsis of it."""
    words = command.replace("[", " ").replace("]", " ").split()
    options = {word for word in words if word.startswith("--")}
    names = []
    for word in words:
        if not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        names.append(word)
    return tuple(names), options


def covers(command, names):
    return command[0][:len(names)] == names


class Pages(unittest.TestCase):
    def setUp(self):
        self.commands = [(parts(found), found.split()) for block in command_blocks(MACHINES[0])
                         for found in re.findall(rf"\b{PROGRAMS} [^|;&)\n]*", block.text)]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="poseidon-page-"))
        self.addCleanup(remove_tree, self.folder)

    def run_here(self, command):
        environment = {**os.environ, "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}"}
        return run(self, "bash", "-euc", command, cwd=self.folder, env=environment, timeout_s=120)

    def give_job(self, name, **changes):
        job = json.loads((ROOT / "deploy/jobs/digits.json").read_text())
        for source in (job["data"]["train"], job["data"]["test"]):
            for key in ("images", "labels"):
                source[key] = str((ROOT / "deploy/jobs" / source[key]).resolve())
        job.update({"iterations": 5, "test_every_iterations": 0, **changes})
        del job["optimizer"]["schedule"]
        (self.folder / name).write_text(json.dumps(job))

    def test_every_form_of_a_synopsis_is_run(self):
        forms = [(f"{page}, line {number}", line) for page, number, line, info in lines_with_blocks() if info == "text"]
        self.assertGreaterEqual(len(forms), 7)
        for place, line in forms:
            self.assertRegex(line, rf"^{PROGRAMS} ", f"{place}: a ```text block has commands of ours, one a line")
            names, options = parts(line)
            run_as = [command for command, _ in self.commands if covers(command, names)]
            self.assertTrue(run_as, f"{place}: no ```sh block has {' '.join(names)}")
            never = options - set().union(*(tried for _, tried in run_as))
            self.assertEqual(never, set(), f"{place}: no ```sh block has {' '.join(names)} with these")

    def test_every_command_of_a_sentence_is_run_or_it_is_known_why_not(self):
        spans = {span: f"{page}, line {number}" for page, number, line, info in lines_with_blocks() if not info
                 for span in re.findall(r"`([^`]+)`", line) if re.match(rf"{PROGRAMS} ", span)}
        self.assertGreaterEqual(len(spans), 15)
        unknown = []
        for span, place in spans.items():
            names, _ = parts(span)
            rest = span.split()[len(names):]
            is_run = any(covers(command, names) and set(rest) <= set(words) for command, words in self.commands)
            is_known = span in HERE or span in NOT_RUN or any(covers(parts(known), names) and not rest for known in HERE)
            if not is_run and not is_known:
                unknown.append(f"{place}: {span}")
            self.assertFalse(is_run and (span in HERE or span in NOT_RUN), f"{span} is run by a block")
        self.assertEqual(unknown, [], "in no ```sh block, not in HERE, not in NOT_RUN")
        self.assertEqual((set(HERE) | set(NOT_RUN)) - set(spans), set(), "on no page")

    def test_commands_of_sentences_that_need_no_machine(self):
        self.give_job("job.json")
        for span, command in HERE.items():
            with self.subTest(span):
                self.run_here(command)

    def test_every_fragment_of_a_job_is_taken(self):
        blocks, before = [], None
        for page, number, line, info in lines_with_blocks():
            if info == "json":
                if before != (page, number - 1):
                    blocks.append((f"{page}, line {number}", ""))
                blocks[-1] = (blocks[-1][0], f"{blocks[-1][1]}{line}\n")
                before = (page, number)
        self.assertGreaterEqual(len(blocks), 3)
        self.give_job("plain.json")
        self.run_here("poseidon plan plain.json --workers 2 --servers 2 --json > plan.json")
        for place, text in blocks:
            with self.subTest(place):
                self.give_job("job.json", **json.loads("{" + text + "}"))
                self.run_here("poseidon plan job.json --workers 2 --servers 2")

    def test_every_command_is_one_that_is_tried(self):
        for page in PAGES:
            fenced = False
            for number, line in enumerate(page.read_text().splitlines(), 1):
                place = f"{page.name}, line {number}"
                if line.startswith("```"):
                    fenced = not fenced
                    if fenced:
                        self.assertRegex(line, r"^```(sh( on=(build|containers|[0-9.,]+))?|text|json)$", place)
                if not fenced:
                    command = re.match(r" {4,}(\./)?(poseidon|docker|sudo|apt|systemctl|cmake|curl|sed|tests/|deploy/)", line)
                    self.assertIsNone(command, f"{place} is a command in no ```sh block: {line}")
            self.assertFalse(fenced, f"{page.name}: a block without end")
        for block in command_blocks(MACHINES[0]):
            for place in block.where:
                self.assertIn(place, (*MACHINES, "build", "containers"), block.place)


def missing_tools():
    return [tool for tool in TOOLS if shutil.which(tool) is None]


@unittest.skipIf(os.geteuid() != 0, "installing packages and starting containers takes root")
@unittest.skipIf(missing_tools(), f"not installed: {', '.join(missing_tools())} (deploy/dependencies.sh --tests)")
class Operations(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="poseidon-operations-", dir=BUILD))
        self.addCleanup(remove_tree, self.folder)
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
        make_next_version(self, packages, tree / "root/new")
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
        self.log.write(f"==== {block.place}, on {place}\n{block.text}----\n")
        begin = time.monotonic()
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, timeout=300, check=False, **where)
        self.log.write(f"{result.stdout}---- exit status {result.returncode}, {time.monotonic() - begin:.1f} s\n")
        self.log.flush()
        if result.returncode != 0:
            journal = "" if place == "build" else subprocess.run(
                [*self.enter(place), "journalctl", "--no-pager", "-n", "40", "-u", "poseidon-*"], capture_output=True,
                text=True, check=False).stdout
            self.fail(f"{block.place}, on {place}: exit status {result.returncode}\n{block.text}----\n"
                      f"{result.stdout[-3000:]}\n{journal}")

    def check_upgraded(self, place):
        """Everything that was installed is there in the next version; what was enabled is so still, and runs."""
        ask = lambda *command: run(self, *self.enter(place), *command)
        versions = dict(line.split() for line in
                        ask("dpkg-query", "-W", "-f", "${Package} ${Version}\n", "poseidon-*").splitlines())
        self.assertTrue({"poseidon-common", "poseidon-server", "poseidon-worker"} <= versions.keys(), versions)
        self.assertEqual("poseidon-coordinator" in versions, place == MACHINES[0])
        for name, version in versions.items():
            self.assertTrue(version.endswith("+next"), f"{name} {version} on {place}")
        ask("systemctl", "is-enabled", "poseidon-server", "poseidon-worker")
        ask("systemctl", "is-active", "poseidon-server", "poseidon-worker")

    def test_every_command_of_the_pages(self):
        self.make_network()
        self.boot(self.make_tree())
        upgraded = []
        for block in command_blocks(MACHINES[0]):
            for place in block.where:
                if place == "containers":
                    continue
                self.execute(block, place)
                if "--only-upgrade" in block.text:
                    self.check_upgraded(place)
                    upgraded.append(place)
        self.assertEqual(sorted(upgraded), sorted(MACHINES))


if __name__ == "__main__":
    unittest.main(verbosity=2)
