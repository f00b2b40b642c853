"""`poseidon run`: a cluster, and a program of one's own, on this machine."""

import os
import re
import signal
import sys
import unittest

from cluster import BIN, ProcessTest, exists, wait_for

# Says who it is, then trains; "slow" gives time to disturb it.
EXAMPLE = f'echo "rank $RANK of $WORLD_SIZE"; exec {BIN}/poseidon-example-linear "$POSEIDON_COORDINATOR" "$WORLD_SIZE"'


class Run(ProcessTest):
    def run_program(self, *command, workers=2):
        self.run_dir = self.folder / "run"
        return self.start("run", BIN / "poseidon", "run", "--workers", workers, "--servers", 1, "--run-dir", self.run_dir, "--",
                          *command)

    def log_of(self, rank):
        path = self.run_dir / "logs" / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def pid_of(self, rank):
        """As the program writes it."""
        wait_for(f"rank {rank} to begin", lambda: re.search(r"pid \d+", self.log_of(rank)))
        return int(re.findall(r"pid (\d+)", self.log_of(rank))[-1])

    def test_programs_train_and_the_output_of_rank_0_is_shown(self):
        run = self.run_program("sh", "-c", EXAMPLE)
        self.assertEqual(run.wait(60), 0, run.log())
        self.assertIn("rank 0 of 2\n", run.log())
        self.assertNotIn("rank 1 of 2", run.log())
        self.assertIn("rank 1 of 2\n", self.log_of(1))
        self.assertRegex(run.log(), r"worker 0 of 2: y = ")
        self.assertRegex(run.log(), r"training +\d+ iterations")
        self.assertTrue((self.run_dir / "model.safetensors").exists() or list(self.run_dir.glob("*/model.safetensors")), run.log())

    def test_a_program_that_fails_ends_the_run_with_its_last_words(self):
        run = self.run_program(sys.executable, "-c", "import os, time\n"
                               "if os.environ['RANK'] == '1': raise ValueError('no such data')\n"
                               "time.sleep(600)")
        self.assertEqual(run.wait(30), 1, run.log())
        self.assertIn("rank-1", run.log())
        self.assertIn("exit status 1", run.log())
        self.assertIn("ValueError: no such data", run.log())

    def test_a_program_that_is_killed_is_started_again(self):
        run = self.run_program("sh", "-c", 'echo pid $$; if [ -e "$POSEIDON_RUN_DIR/killed.$RANK" ]; then exit 0; fi; '
                               'touch "$POSEIDON_RUN_DIR/killed.$RANK"; exec sleep 600')
        for rank in range(2):
            os.kill(self.pid_of(rank), signal.SIGKILL)
        self.assertEqual(run.wait(30), 0, run.log())
        self.assertEqual(run.log().count("signal 9 (Killed); starting it again"), 2, run.log())
        self.assertIn("no job was trained", run.log())

    def test_a_signal_stops_all_and_so_does_its_own_death(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            run = self.run_program("sh", "-c", "echo pid $$; exec sleep 600")
            pids = [self.pid_of(rank) for rank in range(2)]
            run.signal(number)
            self.assertEqual(run.wait(15), 128 + number if number == signal.SIGTERM else -number, run.log())
            wait_for("the programs to end", lambda: not any(exists(pid) for pid in pids), 10)
            for log in (self.run_dir / "logs").glob("rank-*.log"):
                log.unlink()

    def test_what_cannot_be_executed_is_named(self):
        run = self.run_program("no-such-program", workers=1)
        self.assertNotEqual(run.wait(30), 0, run.log())
        self.assertIn("cannot execute no-such-program", run.log())


if __name__ == "__main__":
    unittest.main()
