"""PyTorch's variants: one process per host."""

import torch_gloo
from measurement import collect


def run(job, variant):
    environment = torch_gloo.environment(job.hosts.interface, tuned=variant == "ddp-tuned")
    program = job.source / "torch_rank.py"
    with job.processes() as processes:
        ranks = [processes.start(f"{variant} rank {host}", job.hosts.command(host, [
            job.python, "-B", program, "--variant", variant, "--rank", host, "--world", job.hosts.count, "--master",
            f"{job.hosts.address(0)}:{torch_gloo.PORT}", "--sizes", job.sizes, "--iterations", job.iterations,
            "--timeout-s", job.timeout_s]), environment) for host in range(job.hosts.count)]
        return collect(ranks, job.iterations)
