"""`poseidon top`: on terminals of all sizes, into files, and with a coordinator that says nothing."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from cluster import BIN, Cable, Cluster, ProcessTest, digits_job, poseidon, wait_for

CLEAR_REST = r"\x1b\[J"


class Terminal:
    """What a terminal emulator holds the other end of."""

    def __init__(self, rows, columns):
        self._outside, self.inside = pty.openpty()
        os.environ["TERM"] = "xterm"  # tests may be run where there is none, or a dumb one
        self._written = ""
        self.resize(rows, columns)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._outside)
        os.close(self.inside)

    def resize(self, rows, columns):
        fcntl.ioctl(self._outside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, key):
        os.write(self._outside, key.encode())

    def wait_for(self, pattern):
        """Until what was written has it; the match."""
        def is_there():
            while select.select([self._outside], [], [], 0.05)[0]:
                self._written += os.read(self._outside, 65536).decode()
            return re.search(pattern, self._written, re.DOTALL)
        return wait_for(f"{pattern!r} on the terminal", is_there)

    def screen(self):
        """The lines of the last whole screenful."""
        begin = self._written.rindex("\x1b[H", 0, self._written.rindex("\x1b[J"))
        return re.sub(r"\x1b\[\w", "", self._written[begin:]).replace("\r", "").split("\n")


class Top(ProcessTest):
    def test_shows_a_cluster_that_trains(self):
        cluster = Cluster(self).add(workers=2, servers=1)
        submitted = cluster.submit(digits_job(iterations=5000, test_every_iterations=None), "--workers", 2, "--servers", 1,
                                   run_dir=self.folder / "run")
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        wait_for("shares of both workers", lambda: all(
            worker["compute_share"] is not None for worker in cluster.wait_for_state("running")["workers"]))
        shown = poseidon("top", "--coordinator", cluster.address, "--frames", 2, "--interval-s", 0.1)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertEqual(shown.stdout.count("digits-1  running  iteration "), 2)
        self.assertEqual(len(re.findall(r"^[01] +running +(?:\d[\d,]*|-) +\[[# ]{10}\] +\d+%", shown.stdout, re.MULTILINE)), 4)
        for layer in ("conv1", "conv2", "ip1", "ip2"):
            self.assertEqual(shown.stdout.count(f"{layer} "), 2)
        lines = poseidon("top", "--coordinator", cluster.address, "--json", "--frames", 3, "--interval-s", 0.5)
        statuses = [json.loads(line) for line in lines.stdout.splitlines()]
        self.assertEqual(len(statuses), 3)
        iterations = [status["iteration"] for status in statuses]
        self.assertEqual(iterations, sorted(iterations))
        self.assertGreater(iterations[-1], iterations[0])

    def test_on_a_terminal(self):
        cluster = Cluster(self).add(workers=2, servers=1)
        submitted = cluster.submit(digits_job(iterations=100_000, test_every_iterations=None), "--workers", 2, "--servers", 1,
                                   run_dir=self.folder / "run")
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        cluster.wait_for_state("running")  # top looks once an hour, and when a key is pressed
        for ending in ("q", "SIGTERM"):
            with self.subTest(ending), Terminal(rows=24, columns=80) as terminal:
                keys = termios.tcgetattr(terminal.inside)
                top = subprocess.Popen([BIN / "poseidon", "top", "--coordinator", cluster.address, "--interval-s", "3600"],
                                       stdin=terminal.inside, stdout=terminal.inside, stderr=subprocess.STDOUT)
                self.addCleanup(top.kill)
                terminal.wait_for("digits-1  running  iteration ")
                self.assertFalse(termios.tcgetattr(terminal.inside)[3] & termios.ECHO)
                lines = terminal.screen()
                print("\n".join(lines))
                self.assertTrue(all(len(line) <= 80 for line in lines) and 10 < len(lines) <= 24, lines)
                terminal.resize(rows=8, columns=40)
                terminal.press(" ")  # any key: look now
                terminal.wait_for(f"{CLEAR_REST}.*{CLEAR_REST}")
                lines = terminal.screen()
                self.assertTrue(all(len(line) <= 40 for line in lines) and 2 < len(lines) <= 8, lines)
                if ending == "q":
                    terminal.press("q")
                else:
                    top.terminate()
                terminal.wait_for("\x1b\\[\\?25h\x1b\\[\\?1049l$")
                self.assertEqual(top.wait(10), 0)
                self.assertEqual(termios.tcgetattr(terminal.inside), keys)

    def test_gives_the_terminal_back_while_the_coordinator_is_silent(self):
        cluster = Cluster(self)
        with Terminal(rows=24, columns=40) as terminal:
            keys = termios.tcgetattr(terminal.inside)
            top = subprocess.Popen([BIN / "poseidon", "top", "--coordinator", cluster.address, "--interval-s", "0.1"],
                                   stdin=terminal.inside, stdout=terminal.inside, stderr=subprocess.STDOUT)
            self.addCleanup(top.kill)
            terminal.wait_for("no job yet")
            cluster.coordinator.signal(signal.SIGSTOP)
            terminal.wait_for("the coordinator at ")
            self.assertTrue(all(len(line) <= 40 for line in terminal.screen()), terminal.screen())
            top.send_signal(signal.SIGINT)
            terminal.wait_for("\x1b\\[\\?25h\x1b\\[\\?1049l$")
            top.send_signal(signal.SIGINT)  # ends it as it is, if it has not ended
            self.assertIn(top.wait(10), (0, 130))
            self.assertEqual(termios.tcgetattr(terminal.inside), keys)
            cluster.coordinator.signal(signal.SIGCONT)

    def test_a_terminal_that_can_do_nothing_gets_what_a_file_gets(self):
        cluster = Cluster(self)
        with Terminal(rows=24, columns=80) as terminal:
            top = subprocess.Popen([BIN / "poseidon", "top", "--coordinator", cluster.address, "--frames", "1"],
                                   stdin=terminal.inside, stdout=terminal.inside, stderr=subprocess.STDOUT,
                                   env={**os.environ, "TERM": "dumb"})
            self.addCleanup(top.kill)
            self.assertNotIn("\x1b", terminal.wait_for("no job yet.*\n").string)
            self.assertEqual(top.wait(10), 0)

    def test_into_a_file_it_gives_a_silent_coordinator_up_and_so_does_a_save(self):
        """After 15 s: who waits for a file or an exit status would never see that nothing comes."""
        cluster = Cluster(self, lease_ms=20_000).add(workers=1, servers=1)
        job = digits_job(iterations=1_000_000, test_every_iterations=0, sync={"scheme": "ps"},
                         optimizer={"type": "sgd", "learning_rate": 0.001})
        submitted = cluster.submit(job, "--workers", 1, "--servers", 1, run_dir=self.folder / "run")
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        top = self.start("top", BIN / "poseidon", "top", "--coordinator", cluster.address, "--interval-s", 0.1)
        wait_for("iterations", lambda: re.search(r"digits-1  running  iteration [1-9]", top.log()))
        cluster.servers[0][0].signal(signal.SIGSTOP)  # so that the checkpoint is not there before the silence
        cable = Cable(self, cluster.address)
        save = self.start("save", BIN / "poseidon", "checkpoint", "save", "--coordinator", cable.address)
        wait_for("it to be told, again and again, that there is none yet", lambda: cable.passed > 50)
        cluster.coordinator.signal(signal.SIGSTOP)
        begin = time.monotonic()
        for process, words in ((top, f"{cluster.address} has not answered for 15 s"),
                               (save, f"{cable.address} does not answer")):
            self.assertEqual(process.wait(60), 1, process.log())
            self.assertIn(f"the coordinator at {words}", process.log())
        self.assertGreater(time.monotonic() - begin, 10, "a short silence is none")

    def test_a_signal_ends_it(self):
        cluster = Cluster(self)
        top = self.start("top", BIN / "poseidon", "top", "--coordinator", cluster.address, "--interval-s", 3600)
        wait_for("the first screenful", lambda: "no job yet" in top.log())
        top.signal(signal.SIGTERM)
        self.assertEqual(top.wait(10), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
