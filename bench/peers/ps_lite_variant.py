"""ps-lite's own test_benchmark, where a build of it is given with --ps-lite. UNTESTED: no Debian package has it.

It is no like for like: its server stores the last push and sums nothing, values are not checked, and it sends equal
messages of 1,024,000 bytes whatever the network's tensors. Its time is scaled to the network's bytes. CPU is not known.
"""

import re

from measurement import Measurement

MESSAGE_BYTES = 1_024_000  # the program's default
PORT = 4791
PUSH_PULL = 1  # mode: push and pull of every key at once, then wait for all


def run(job, parameter_bytes):
    hosts = job.hosts.count
    keys_per_server = -(-parameter_bytes // (MESSAGE_BYTES * hosts))

    def start(processes, role, host):
        return processes.start(f"ps-lite {role} {host}", job.hosts.command(host, [
            job.ps_lite, MESSAGE_BYTES, job.iterations + 1, PUSH_PULL]), {
                "DMLC_ROLE": role, "DMLC_NUM_WORKER": str(hosts), "DMLC_NUM_SERVER": str(hosts),
                "DMLC_PS_ROOT_URI": job.hosts.address(0), "DMLC_PS_ROOT_PORT": str(PORT),
                "DMLC_INTERFACE": job.hosts.interface, "DMLC_NODE_HOST": job.hosts.address(host),
                "NUM_KEY_PER_SERVER": str(keys_per_server), "LOG_DURATION": "1"})

    with job.processes() as processes:
        started = [start(processes, "scheduler", 0)]
        started += [start(processes, "server", host) for host in range(hosts)]
        workers = [start(processes, "worker", host) for host in range(hosts)]
        for process in started + workers:
            process.finish()
        # "goodput" counts the pushed bytes only; the first iteration does not count.
        rates = [[float(rate) for rate in re.findall(r"Application goodput: ([\d.e+-]+) Gbps", worker.log())][1:]
                 for worker in workers]
    return Measurement([8e-9 * parameter_bytes / min(of_iteration) for of_iteration in zip(*rates)], None)
