"""Open MPI's variants: mpirun on the first host starts a daemon on each other one, as it would over ssh."""

import shlex
import shutil
import subprocess

from measurement import collect
from processes import ProcessError

# Algorithm 5 of coll/tuned's all-reduce is the segmented ring.
SEGMENTED = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "5",
             "--mca", "coll_tuned_allreduce_algorithm_segmentsize", "1m"]


def why_not():
    """Why these variants cannot run; None when they can."""
    for command, package in (("mpirun", "openmpi-bin"), ("mpicc", "libopenmpi-dev")):
        if shutil.which(command) is None:
            return f"the command {command} is missing: deploy/dependencies.sh --bench (package {package})"
    return None


def compile_program(source, folder):
    """Path of the compiled program."""
    program = folder / "mpi_allreduce"
    done = subprocess.run(["mpicc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", source / "mpi_allreduce.c", "-o",
                           program, "-lm"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=120,
                          check=False)
    if done.returncode != 0:
        raise ProcessError(f"mpicc cannot compile mpi_allreduce.c:\n{done.stderr}")
    return program


def _agent(job):
    """Stands in for ssh: HOST COMMAND... runs the command on that host, under a host name of its own, by which the
    daemons tell each other apart."""
    cases = "\n".join(f"  {job.hosts.address(host)}) set -- {shlex.join(job.hosts.command(host, ['unshare', '--uts']))} "
                      f"sh -c \"hostname host{host}; $*\" ;;" for host in range(job.hosts.count))
    path = job.folder / "agent.sh"
    path.write_text(f"#!/bin/sh\n# Written by mpi_variant.py.\nhost=$1\nshift\ncase $host in\n{cases}\n"
                    "  *) echo \"no host $host\" >&2; exit 1 ;;\nesac\nexec \"$@\"\n")
    path.chmod(0o755)
    return path


def run(job, segmented):
    interface = job.hosts.interface
    with job.processes() as processes:
        hosts = ",".join(job.hosts.address(host) for host in range(job.hosts.count))
        command = ["mpirun", "--allow-run-as-root", "-np", job.hosts.count, "--host", hosts, "--map-by", "node",
                   "--bind-to", "none", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", _agent(job),
                   "--mca", "oob_tcp_if_include", interface,
                   "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", interface, "--mca", "pml", "ob1",
                   # Who waits lets the others run: all hosts share this machine's cores, which Open MPI does not know.
                   # Without it both variants were slower in every pair of runs, with as many hosts as cores too.
                   "--mca", "mpi_yield_when_idle", "1",
                   *(SEGMENTED if segmented else []), job.mpi_program, job.sizes, job.iterations]
        mpirun = processes.start("mpirun", job.hosts.command(0, [
            "unshare", "--uts", "sh", "-c", f"hostname host0; exec {shlex.join(map(str, command))}"]))
        return collect([mpirun], job.iterations)
