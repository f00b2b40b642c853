"""Child processes that speak in lines of JSON. Every wait has a deadline; none outlives its Processes."""

import json
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time


class ProcessError(Exception):
    """A process failed or said nothing for too long; the message has its last lines."""


class Process:
    """One child. stdout: JSON objects, one per line (other lines go to the log); stderr: the log."""

    def __init__(self, name, command, log, timeout_s, deadline, environment):
        self.name = name
        self._timeout_s = timeout_s
        self._log_path = pathlib.Path(log)
        self._deadline = deadline
        self._log = open(log, "wb")
        self._lines = queue.SimpleQueue()
        # A session of its own: a signal to the group reaches what it starts in turn (mpirun's daemons).
        self._popen = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=self._log, env={**os.environ, **environment}, start_new_session=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._popen.stdout:
            if line.startswith(b"{"):
                self._lines.put(line)
            else:
                self._log.write(line)
                self._log.flush()
        self._lines.put(None)

    def _remaining(self):
        return max(0.0, self._deadline - time.monotonic())

    def log(self):
        self._log.flush()
        return self._log_path.read_text(errors="replace")

    def _fail(self, what):
        lines = self.log().splitlines()[-15:]
        raise ProcessError("\n  ".join([f"{self.name}: {what}; its last lines:", *(lines or ["(none)"])]))

    def expect(self, key):
        """The next object; it must have this key."""
        try:
            line = self._lines.get(timeout=self._remaining())
        except queue.Empty:
            self._fail(f"did not say '{key}' within the {self._timeout_s} s of this run (--timeout-s)")
        if line is None:
            try:
                status = self._popen.wait(self._remaining())
            except subprocess.TimeoutExpired:
                status = "unknown"
            self._fail(f"ended (status {status}) before it said '{key}'")
        try:
            message = json.loads(line)
        except ValueError:
            self._fail(f"said {line!r}, which is no JSON")
        if key not in message:
            self._fail(f"said {message} instead of '{key}'")
        return message

    def check_running(self):
        """It must not have ended."""
        status = self._popen.poll()
        if status is not None:
            self._fail(f"ended with status {status}")

    def check_not_failed(self):
        """It runs, or it has ended well."""
        status = self._popen.poll()
        if status:
            self._fail(f"ended with status {status}")

    def cpu_seconds(self):
        """User and system time of the process until now, its threads included, its children not."""
        fields = pathlib.Path(f"/proc/{self._popen.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def send(self, line):
        try:
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            self._fail("ended")

    def end_input(self):
        try:
            self._popen.stdin.close()
        except BrokenPipeError:
            pass  # it has ended; finish() tells how

    def finish(self):
        """Waits for its end, which must be a success."""
        try:
            status = self._popen.wait(self._remaining())
        except subprocess.TimeoutExpired:
            self._fail(f"did not end within the {self._timeout_s} s of this run (--timeout-s)")
        if status != 0:
            self._fail(f"ended with status {status}")

    def destroy(self):
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)  # a group that has ended already is no error
        except ProcessLookupError:
            pass
        self._popen.wait()
        self._reader.join(5)
        self.end_input()
        self._popen.stdout.close()
        self._log.close()


class Processes:
    """`with Processes(folder, 120) as processes:` all children have ended after it. One deadline for all waits."""

    def __init__(self, folder, timeout_s):
        self._folder = pathlib.Path(folder)
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._children = []

    def start(self, name, command, environment=None):
        child = Process(name, command, self._folder / f"{name.replace(' ', '-')}.log", self._timeout_s,
                        self._deadline, environment or {})
        self._children.append(child)
        return child

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in reversed(self._children):
            child.destroy()
