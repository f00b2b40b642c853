"""Poseidon itself in slow motion: the real coordinator, servers and workers, whose device is emulated.

Link rates are divided by the factor f and the device's times multiplied by it; what is answered is divided by f again.
"""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys

from cluster import Cluster, Layout, per_iteration
from measurement import BusyCores, Measurement
from processes import ProcessError
from profiles import parameters

WARM_UP = 2                  # iterations that are not measured: the first one feels how the cards were shaped under way
SHARED_ABOVE_BYTES = 4 << 30  # of parameters and gradients of all workers: then they share them
CIFAR_RECORD_BYTES = 1 + 3 * 32 * 32
CONGESTION_CONTROL = "cubic"  # Debian's default, whatever this machine has
# More workers than these, where memory is short, crowd this machine.
CROWDED_ABOVE_WORKERS = 16
# Then servers hold less of early gradients than their default of 256 MiB. (16 MiB for 32 workers, a single chunk of each,
# made an iteration of VGG19-22K a sixth longer.) Fewer workers keep the default: sixteen of ResNet-152 that wait for 10 GbE
# took 1.6 times as long with this little.
CROWDED_PENDING_LIMIT_MIB_PER_WORKER = 2
# And chunks are smaller than the planner's: of each worker and server every stream holds one or two while they arrive, and
# there are twice workers x servers of them.
CROWDED_CHUNK_BYTES = 512 << 10
GOODPUT = 1448 / 1514         # TCP's payload in a full Ethernet frame: what a calibration would measure of a card's rate
STATUS_POLL_S = 0.5
METRICS_PORT = 9464          # of worker 0; each host has a loopback of its own
STALL = re.compile(r'^poseidon_layer_stall_seconds_total{[^}]*layer="([^"]+)"[^}]*} (\S+)$', re.MULTILINE)
LEASE_MS = 60000             # processes that share two cores are silent for longer than hosts of their own
START_TIMEOUT_S = 300        # until the first iterations are done, beyond their own time


@dataclasses.dataclass(frozen=True)
class Variant:
    """What differs between our own variants; the ablations change one thing each."""

    about: str
    scheme: str = "auto"
    chunk_bytes: int | None = None  # None: the planner chooses
    servers: str = "all"              # as many as workers' hosts, on them; "half", "quarter" likewise; "apart": hosts of their own
    overlap: str = "all"              # poseidon-bench-worker --overlap
    send_order: str = "need"          # sync.send_order
    workers_per_host: int = 1
    local_aggregation: str = "auto"   # sync.local_aggregation

    def server_count(self, hosts):
        return max(1, hosts // {"all": 1, "half": 2, "quarter": 4, "apart": 1}[self.servers])


VARIANTS = {
    "poseidon": Variant("all of it"),
    "ps-only": Variant("wait-free backpropagation, no sufficient factors", scheme="ps"),
    "sfb-only": Variant("every fully connected layer by sufficient factors", scheme="sfb"),
    "forward-not-gated": Variant("forward begins when all parameters are there, not layer by layer", overlap="backward"),
    "no-overlap": Variant("besides, gradients leave when all of backward is done", overlap="none"),
    "no-priority": Variant("what is ready first is sent first", send_order="ready"),
    "chunks-2m": Variant("chunks of 2 MiB", chunk_bytes=2 << 20),
    "chunks-256k": Variant("chunks of 256 KiB", chunk_bytes=256 << 10),
    "chunks-8m": Variant("chunks of 8 MiB", chunk_bytes=8 << 20),
    "chunks-64m": Variant("chunks of 64 MiB, the most there can be", chunk_bytes=64 << 20),
    "half-servers": Variant("a server on every other worker's host", servers="half"),
    "quarter-servers": Variant("a server on every fourth worker's host", servers="quarter"),
    "four-devices": Variant("four workers on each host, whose gradients are summed there", workers_per_host=4),
    "four-devices-each": Variant("four workers on each host, each of which talks to the servers", workers_per_host=4,
                                 local_aggregation="off"),
    "servers-apart": Variant("servers on as many hosts of their own", servers="apart"),
}


def write_data(path, samples):
    """Samples of CIFAR-10's format: what they show is nobody's business here."""
    record = bytes(range(256)) * (CIFAR_RECORD_BYTES // 256 + 1)
    path.write_bytes(b"".join(bytes([number % 10]) + record[:CIFAR_RECORD_BYTES - 1] for number in range(samples)))


def job(profile, input_size, data, variant, iterations, plan):
    """The job that runs; padded to the network's input, which is the cheapest way to images of that size."""
    pad = (input_size - 32 + 1) // 2
    sync = {"chunk_bytes": variant.chunk_bytes or "auto", "send_order": variant.send_order,
            "local_aggregation": variant.local_aggregation}
    if plan is not None:
        sync["plan"] = str(plan)
    else:
        sync["scheme"] = variant.scheme
    return {
        "name": f"{profile['network']}-{variant.scheme}",
        "model": profile["network"],
        "data": {"train": {"format": "cifar10", "files": [str(data)]}, "shuffle": False, "seed": 1,
                 "transform": {"pad": pad, "random_crop": [input_size, input_size], "scale": 1 / 255}},
        "batch_size": profile["batch_size"],
        "iterations": iterations,
        "optimizer": {"type": "sgd", "learning_rate": 0.01, "momentum": 0.9},
        "sync": sync,
        "checkpoint": {"every_iterations": 0},
        "test_every_iterations": 0,
    }


def make_plan(programs, job_file, profile, layout, gbit):
    """What `poseidon plan` says for these machines, in real time; the file to pin and what it predicts."""
    gbit *= GOODPUT
    images_per_s = profile["batch_size"] / sum(layer["forward_s"] + layer["backward_s"] for layer in profile["layers"])
    command = [programs / "poseidon", "plan", job_file, "--workers", layout.workers, "--servers", layout.servers,
               "--workers-per-machine", layout.workers_per_host, "--bandwidth", f"{gbit}gbit", "--device-flops", profile["device_flops"], "--images-per-s", images_per_s,
               "--json"] + ([] if layout.servers_with_workers else ["--separate-servers"])
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=120, check=False)
    if done.returncode != 0:
        raise ProcessError(f"poseidon plan: {done.stderr.strip()}")
    plan = job_file.with_name("planned.json")
    plan.write_text(done.stdout)
    return plan, json.loads(done.stdout)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run and what it was planned to be."""

    measurement: Measurement
    plan: dict               # as planned, in real time
    schemes: dict            # layer -> scheme, of the plan in force


def memory_is_short(profile, workers):
    """Whether parameters and gradients of their own for all workers would be too much."""
    return 2 * 4 * parameters(profile) * workers > SHARED_ABOVE_BYTES


def is_crowded(profile, workers):
    """Whether even sharing them is not enough."""
    return memory_is_short(profile, workers) and workers > CROWDED_ABOVE_WORKERS


def fitted(variant, profile, workers):
    """The variant as it fits into this machine's memory; one that is about the chunks stays as it is."""
    if variant.chunk_bytes is not None or not is_crowded(profile, workers):
        return variant
    return dataclasses.replace(variant, chunk_bytes=CROWDED_CHUNK_BYTES)


def stalls(cluster, worker):
    """layer -> seconds for which the worker's computing has waited for it since the job began."""
    read = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{METRICS_PORT + worker}/metrics', timeout=30).read().decode())"
    done = subprocess.run(cluster.hosts.command(cluster.layout.worker_host(worker), [sys.executable, "-c", read]),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise ProcessError(f"the metrics of worker {worker}: {done.stderr.strip()}")
    return {layer: float(seconds) for layer, seconds in STALL.findall(done.stdout)}


def plan_of(programs, profile, input_size, hosts, gbit, variant, folder):
    """(layout without a rate, plan file, plan): needs no cluster."""
    folder.mkdir(parents=True, exist_ok=True)
    workers = hosts * variant.workers_per_host
    variant = fitted(variant, profile, workers)
    data = folder / "data.bin"
    write_data(data, workers * profile["batch_size"])  # one iteration is all of it
    layout = Layout(workers, variant.server_count(hosts), variant.servers != "apart", None, CONGESTION_CONTROL,
                    workers_per_host=variant.workers_per_host)
    job_file = folder / "plan-job.json"
    job_file.write_text(json.dumps(job(profile, input_size, data, variant, 1000, None)))
    return (layout, *make_plan(programs, job_file, profile, layout, gbit))


def run(programs, profile, input_size, hosts, gbit, slow, variant, iterations, folder):
    """`iterations` measured ones of as many hosts at `gbit` Gbit/s, slowed by the factor `slow`."""
    layout, plan_file, plan = plan_of(programs, profile, input_size, hosts, gbit, variant, folder)
    workers = layout.workers
    layout = dataclasses.replace(layout, slow=slow)
    variant = fitted(variant, profile, workers)
    profile_file = folder / "profile.json"
    profile_file.write_text(json.dumps(profile))
    worker = ["poseidon-bench-worker", "--profile", profile_file, "--slow", slow, "--overlap", variant.overlap, "--threads", "1", "--data-threads", "1",
              "--server-timeout-s", "300", "--metrics-listen", lambda index: f"127.0.0.1:{METRICS_PORT + index}"]
    server = []
    shared = folder / "tensors"
    if memory_is_short(profile, workers):
        shared = pathlib.Path("/dev/shm") / f"poseidon-bench-{folder.name}"
        worker += ["--shared-tensors", shared]
    if is_crowded(profile, workers):
        server += ["--pending-limit-mib", CROWDED_PENDING_LIMIT_MIB_PER_WORKER * workers]
    expected_s = slow * max(plan["predicted"]["iteration_seconds"], 1e-3)
    poll_s = min(0.1, max(0.002, expected_s / 1000))  # 33 daemons are looked after at each
    timeout_s = START_TIMEOUT_S + 3 * expected_s * (WARM_UP + iterations + 1)
    try:
        with Cluster(layout, programs, folder, timeout_s, worker, ["--lease-ms", LEASE_MS], server) as cluster:
            # The job never ends: what happens at its end is nobody's business here.
            cluster.submit(job(profile, input_size, folder / "data.bin", variant, 1_000_000, plan_file))
            # Parameters are handed out at full speed.
            cluster.wait_for("the job to train", lambda: cluster.status()["state"] == "running", STATUS_POLL_S)
            cluster.shape(gbit * 1000 / slow)
            ends = [cluster.wait_for_iteration(WARM_UP, poll_s)]
            stalled = stalls(cluster, 0)
            before, cpu_before, busy = cluster.card_bytes(), cluster.cpu_seconds(), BusyCores()
            ends += [cluster.wait_for_iteration(WARM_UP + count, poll_s) for count in range(1, iterations + 1)]
            after, cpu_after, share = cluster.card_bytes(), cluster.cpu_seconds(), busy.share()
            seconds = [(b - a) / slow for a, b in zip(ends, ends[1:])]
            stalled = {layer: until - stalled[layer] for layer, until in stalls(cluster, 0).items()}
            in_force = cluster.plan()
    finally:
        shared.unlink(missing_ok=True)
    return Run(Measurement(seconds=seconds, cpu_seconds=(cpu_after - cpu_before) / iterations, busy=share,
                           sent_bytes=per_iteration(before, after, iterations, 0),
                           received_bytes=per_iteration(before, after, iterations, 1),
                           stall_s={layer: waited / iterations / slow for layer, waited in stalled.items()}),
               plan=plan, schemes={layer["name"]: layer["scheme"] for layer in in_force["layers"]})
