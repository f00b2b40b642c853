"""The machine that is measured, for results; and signals that end a run cleanly."""

import datetime
import json
import os
import pathlib
import platform
import signal
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def first_line(*command, timeout_s=60):
    """What a command prints; "" when it cannot be run or does not end."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else ""


def about():
    cpu = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
           if line.startswith("model name")]
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "tcp_congestion_control": pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "load_average_at_start": os.getloadavg()[0],
        "commit": first_line("git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "describe", "--always", "--dirty"),
    }


def begin_run(kind, name="%Y%m%d-%H%M%S"):
    """(an empty folder below build/ of `kind`, named by the date; what a result begins with)"""
    date = datetime.datetime.now(datetime.timezone.utc)
    folder = ROOT / "build" / kind / date.strftime(name)
    folder.mkdir(parents=True)
    return folder, {"date": date.isoformat(timespec="seconds"), "machine": about()}


def as_json(arguments):
    """Of a command line, for a result."""
    return {key: str(value) if isinstance(value, pathlib.Path) else value for key, value in vars(arguments).items()}


def write_result(path, result):
    """As JSON; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _interrupt(*_):
    # From here on we clean up; a second Ctrl-C must not leave namespaces behind.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def clean_up_on_signals():
    """The first of these signals becomes a KeyboardInterrupt, others are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
