"""Starting Open MPI's programs on hosts: mpirun on the first starts a daemon on each other one, as it would over ssh."""

import shlex
import shutil
import subprocess

from processes import ProcessError

# Algorithm 5 of coll/tuned's all-reduce is the segmented ring.
SEGMENTED = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "5",
             "--mca", "coll_tuned_allreduce_algorithm_segmentsize", "1m"]


def why_not():
    """Why it cannot run here; None when it can."""
    for command, package in (("mpirun", "openmpi-bin"), ("mpicc", "libopenmpi-dev")):
        if shutil.which(command) is None:
            return f"the command {command} is missing: deploy/dependencies.sh --bench (package {package})"
    return None


def compile_program(source, folder):
    """Path of the program that this C file becomes, in that folder."""
    program = folder / source.stem
    done = subprocess.run(["mpicc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", source, "-o", program, "-lm"],
                          stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise ProcessError(f"mpicc cannot compile {source.name}:\n{done.stderr}")
    return program


def _agent(hosts, folder):
    """Stands in for ssh: HOST COMMAND... runs the command on that host, under a host name of its own, by which the
    daemons tell each other apart."""
    cases = "\n".join(f"  {hosts.address(host)}) set -- {shlex.join(hosts.command(host, ['unshare', '--uts']))} "
                      f"sh -c \"hostname host{host}; $*\" ;;" for host in range(hosts.count))
    path = folder / "agent.sh"
    path.write_text(f"#!/bin/sh\n# Written by open_mpi.py.\nhost=$1\nshift\ncase $host in\n{cases}\n"
                    "  *) echo \"no host $host\" >&2; exit 1 ;;\nesac\nexec \"$@\"\n")
    path.chmod(0o755)
    return path


def start(processes, hosts, folder, command, options=()):
    """One rank of `command` per host, with these options of mpirun; the process that is mpirun."""
    addresses = ",".join(hosts.address(host) for host in range(hosts.count))
    mpirun = ["mpirun", "--allow-run-as-root", "-np", hosts.count, "--host", addresses, "--map-by", "node",
              "--bind-to", "none", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", _agent(hosts, folder),
              "--mca", "oob_tcp_if_include", hosts.interface,
              "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", hosts.interface, "--mca", "pml", "ob1",
              # Who waits lets the others run: all hosts share this machine's cores, which Open MPI does not know.
              # Without it both variants were slower in every pair of runs, with as many hosts as cores too.
              "--mca", "mpi_yield_when_idle", "1", *options, *command]
    return processes.start("mpirun", hosts.command(0, [
        "unshare", "--uts", "sh", "-c", f"hostname host0; exec {shlex.join(map(str, mpirun))}"]))
