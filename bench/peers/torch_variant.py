"""PyTorch's variants: one process per host, as torchrun starts one per machine."""

import subprocess

from measurement import collect

PORT = 4790

# ProcessGroupGloo makes one set of connections and two threads per named interface, and collectives take the sets in
# turn. Naming the interface four times gives four sets over the same card, so several buckets travel at a time
# (counted with torch 1.13: three more connections and eight more threads). It is the only public knob: no option of
# init_process_group or of DDP says it.
TUNED_CONNECTIONS = 4


def why_not(python):
    """Why these variants cannot run; None when they can."""
    program = "import torch.distributed as d; assert d.is_gloo_available()"
    try:
        done = subprocess.run([python, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
                              check=False)
    except OSError as error:
        return f"{python}: {error.strerror}"
    if done.returncode != 0:
        return (f"{python} has no torch with Gloo: deploy/dependencies.sh --bench (package python3-torch), or name "
                "an interpreter that has one with --python")
    return None


def run(job, variant):
    interfaces = [job.hosts.interface] * (TUNED_CONNECTIONS if variant == "ddp-tuned" else 1)
    environment = {"GLOO_SOCKET_IFNAME": ",".join(interfaces),
                   # As torchrun sets it where several processes share a machine, and here all hosts do.
                   "OMP_NUM_THREADS": "1"}
    program = job.source / "torch_rank.py"
    with job.processes() as processes:
        ranks = [processes.start(f"{variant} rank {host}", job.hosts.command(host, [
            job.python, "-B", program, "--variant", variant, "--rank", host, "--world", job.hosts.count, "--master",
            f"{job.hosts.address(0)}:{PORT}", "--sizes", job.sizes, "--iterations", job.iterations, "--timeout-s",
            job.timeout_s]), environment) for host in range(job.hosts.count)]
        return collect(ranks, job.iterations)
