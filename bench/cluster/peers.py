"""The peers on the emulated cluster: PyTorch's DDP, Horovod and Open MPI, one process per host. See PEERS.md.

Each plays the same profile as Poseidon on the same hosts: compute times are multiplied by the slow-motion factor, what
comes out is divided by it. Whoever makes the hosts divides the rates of their cards.
"""

import contextlib
import functools
import os
import pathlib
import shlex
import subprocess

import open_mpi
import torch_gloo
from measurement import BusyCores, Measurement
from processes import ProcessError, Processes

FOLDER = pathlib.Path(__file__).resolve().parent
MPI_POLL_S = 20e-6  # real time; see mpi_allreduce.c

DDP = ["ddp", "ddp-tuned", "ddp-tuned-fp16", "ddp-powersgd"]
NAMES = [*DDP, "horovod", "mpi"]
HOROVOD_CYCLE_MS = 1  # its default: how often it looks for gradients; real time


def why_not(name, python=torch_gloo.default_python(), horovod_python=None):
    """Why this peer cannot run here; None when it can."""
    if name not in NAMES:
        return f"'{name}' is none of {', '.join(NAMES)}"
    if name == "horovod":
        return _why_no_horovod(horovod_python)
    return open_mpi.why_not() if name == "mpi" else _why_no_torch(python)


_why_no_torch = functools.lru_cache(None)(torch_gloo.why_not)


@functools.lru_cache(None)
def _why_no_horovod(python):
    if python is None:
        return "give an interpreter that has Horovod with --horovod-python (PEERS.md says how to make one)"
    try:
        done = subprocess.run([python, "-c", "import horovod.torch as h; assert h.gloo_built()"], capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=120, check=False)
    except OSError as error:
        return f"{python}: {error.strerror}"
    return f"{python} has no Horovod with PyTorch and Gloo (PEERS.md says how to make one)" if done.returncode != 0 else None


def run(name, hosts, profile, slow_motion, iterations, warm_up, folder, *, timeout_s=600,
        python=torch_gloo.default_python(), horovod_python=None, powersgd_rank=4):
    """One Measurement of one peer on all of these hosts; `profile` is a device_profile.Profile. Logs go to `folder`. Raises
    ProcessError where a process fails, is silent past the timeout, or has a wrong sum."""
    if warm_up < 3:
        raise ValueError(f"warm_up is {warm_up}: DDP makes its buckets after the first iteration and PowerSGD compresses "
                         "from the third on; 3 or more")
    folder.mkdir(parents=True, exist_ok=True)
    with Processes(folder, timeout_s) as processes, contextlib.ExitStack() as stack:
        if name == "mpi":
            ranks = _start_mpi(processes, hosts, profile, slow_motion, warm_up + iterations, folder)
        else:
            profile_file = folder / "profile.json"
            profile.write(profile_file)
            shared = stack.enter_context(_shared_memory(3 * profile.parameter_bytes))
            arguments = ["--world", hosts.count, "--profile", profile_file, "--shared", shared, "--slow-motion", slow_motion,
                         "--warm-up", warm_up, "--iterations", iterations]
            if name == "horovod":
                ranks = _start_horovod(processes, hosts, slow_motion, horovod_python, arguments)
            else:
                ranks = _start_ddp(processes, name, hosts, python, [
                    *arguments, "--powersgd-rank", powersgd_rank, "--timeout-s", timeout_s])
        measurement = _collect(ranks, hosts, slow_motion, warm_up, iterations)
    _check_network_was_used(name, measurement, profile, hosts.count)
    return measurement


@contextlib.contextmanager
def _shared_memory(size):
    """Path of a file in memory, all zero, which takes no more of it than is touched."""
    descriptor = os.memfd_create("poseidon-bench")
    try:
        os.ftruncate(descriptor, size)
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _start_ddp(processes, name, hosts, python, arguments):
    environment = torch_gloo.environment(hosts.interface, tuned=name != "ddp")
    return [processes.start(f"{name} rank {host}", hosts.command(host, [
        python, "-B", FOLDER / "ddp_rank.py", "--variant", name, "--rank", host, "--master",
        f"{hosts.address(0)}:{torch_gloo.PORT}", *arguments]), environment) for host in range(hosts.count)]


def _start_horovod(processes, hosts, slow_motion, python, arguments):
    """As `horovodrun --gloo` does it, which would reach the hosts by ssh. Horovod makes some of its connections to the
    address of the host's name, whatever interface it is told; so the address is the name."""
    program = FOLDER / "horovod_rank.py"
    rendezvous = processes.start("horovod rendezvous", hosts.command(0, [python, "-B", program, "--serve", hosts.count]))
    port = rendezvous.expect("port")["port"]

    def environment(host):
        return {"HOROVOD_HOSTNAME": f"host{host}", "HOROVOD_RANK": str(host), "HOROVOD_SIZE": str(hosts.count),
                "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1", "HOROVOD_CROSS_RANK": str(host),
                "HOROVOD_CROSS_SIZE": str(hosts.count), "HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts.address(0),
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port), "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_IFACE": hosts.interface, "HOROVOD_CYCLE_TIME": str(HOROVOD_CYCLE_MS * slow_motion),
                "OMP_NUM_THREADS": "1"}

    def command(host):
        rank = shlex.join(map(str, [python, "-B", program, "--rank", host, *arguments]))
        return ["unshare", "--uts", "sh", "-c", f"hostname {hosts.address(host)}; exec {rank}"]

    return [processes.start(f"horovod rank {host}", hosts.command(host, command(host)), environment(host))
            for host in range(hosts.count)]


def _start_mpi(processes, hosts, profile, slow_motion, iterations, folder):
    program = open_mpi.compile_program(FOLDER.parent / "peers" / "mpi_allreduce.c", folder)
    sizes = folder / "sizes.txt"
    sizes.write_text("".join(f"{layer.name.replace(' ', '_')} {' '.join(map(str, layer.elements))}\n"
                             for layer in profile.layers))
    seconds = [slow_motion * value for value in (profile.compute_s, profile.optimizer_s, MPI_POLL_S)]
    return [open_mpi.start(processes, hosts, folder, [program, sizes, iterations, *(f"{value:.9f}" for value in seconds)])]


def _collect(ranks, hosts, slow_motion, warm_up, iterations):
    """From processes that say {"end", "cpu_s"} when an iteration has ended. Right after it no network is used before the
    device has computed, so the cards' counters belong to whole iterations."""
    ends, cpu, cards = [], [], []
    for iteration in range(warm_up + iterations):
        said = [rank.expect("end") for rank in ranks]
        ends.append(max(one["end"] for one in said))
        cpu.append(sum(one["cpu_s"] for one in said))
        if iteration == warm_up - 1:
            busy = BusyCores()
        if iteration in (warm_up - 1, warm_up + iterations - 1):
            cards.append([hosts.card_bytes(host) for host in range(hosts.count)])
    share = busy.share()
    for rank in ranks:
        rank.finish()
    first, last = cards

    def per_iteration(direction):
        return [(new[direction] - old[direction]) / iterations for old, new in zip(first, last)]

    return Measurement(
        seconds=[(end - begin) / slow_motion for begin, end in zip(ends[warm_up - 1:], ends[warm_up:])],
        cpu_seconds=(cpu[-1] - cpu[warm_up - 1]) / iterations, busy=share, sent_bytes=per_iteration(0),
        received_bytes=per_iteration(1))


def _check_network_was_used(name, measurement, profile, count):
    """Nobody sums over hosts with less than this; who seems to has found a way around the network."""
    if name == "ddp-powersgd":
        return  # what it sends depends on shapes and rank; its bytes are in the results
    least = 2 * (count - 1) * profile.parameter_bytes * (0.5 if name == "ddp-tuned-fp16" else 1)
    sent = sum(measurement.sent_bytes)
    if sent < 0.9 * least:
        raise ProcessError(f"{name}: the hosts sent {sent:.0f} bytes per iteration and cannot have synchronised with less "
                           f"than {least:.0f}: part of the data did not go through their network cards")
