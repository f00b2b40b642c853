"""Our own program as a variant: a worker and a server on each host (bench/peers/node.cc says how they are driven)."""

from measurement import Measurement


def run(job):
    with job.processes() as processes:
        common = ["--workers", job.hosts.count, "--sizes", job.sizes]
        servers = [processes.start(f"server {host}", job.hosts.command(host, [
            job.node, "--role", "server", "--listen", f"{job.hosts.address(host)}:0", *common]))
            for host in range(job.hosts.count)]
        addresses = ",".join(server.expect("listening")["listening"] for server in servers)
        for index, server in enumerate(servers):
            server.send(f"assign {index} {addresses}")
        for server in servers:
            server.expect("assigned")
        workers = [processes.start(f"worker {host}", job.hosts.command(host, [
            job.node, "--role", "worker", "--rank", host, "--servers", addresses, "--iterations", job.iterations,
            "--timeout-s", job.timeout_s, *common])) for host in range(job.hosts.count)]
        for worker in workers:
            worker.expect("warm")
        for server in servers:
            server.send("mark")
        for server in servers:
            server.expect("marked")
        seconds = []
        for _ in range(job.iterations):
            # The driver is the barrier that the other variants have in their own library.
            for worker in workers:
                worker.send("go")
            seconds.append(max(worker.expect("seconds")["seconds"] for worker in workers))
        cpu = sum(worker.expect("cpu_seconds")["cpu_seconds"] for worker in workers)
        for server in servers:
            server.end_input()
        cpu += sum(server.expect("cpu_seconds")["cpu_seconds"] for server in servers)
        for process in workers + servers:
            process.finish()
        return Measurement(seconds, cpu)
