"""Compares the time and CPU of synchronising gradients by Poseidon and by others: see README.md here. Started by run.sh."""

import argparse
import dataclasses
import os
import pathlib
import shutil
import statistics
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(ROOT / "bench" / "common"))

import hosts  # noqa: E402
import machine  # noqa: E402
import networks  # noqa: E402
import open_mpi  # noqa: E402
import torch_gloo  # noqa: E402
import variants  # noqa: E402
from measurement import Job  # noqa: E402
from processes import ProcessError  # noqa: E402

BUILD = pathlib.Path(os.environ.get("POSEIDON_BUILD", ROOT / "build" / "release"))
ELEMENT_BYTES = 4


def words_of(known):
    def parse(text):
        words = text.split(",")
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"'{word}' is none of {', '.join(known)}")
        return words
    return parse


def host_counts(text):
    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        counts = [0]
    if not all(2 <= count <= 16 for count in counts):
        raise argparse.ArgumentTypeError(f"'{text}': numbers from 2 to 16, such as 2,4")
    return counts


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}': a whole number above 0")
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="run.sh", description="Synchronisation of one iteration's gradients: "
                                     "Poseidon, PyTorch DDP, Gloo and Open MPI on hosts made of network namespaces.")
    parser.add_argument("--hosts", type=host_counts, default=None, help="how many, default 2,4")
    parser.add_argument("--networks", type=words_of(networks.NETWORKS), default=None,
                        help="default resnet50,vgg19")
    parser.add_argument("--iterations", type=positive, default=None, help="measured per round, default 5")
    parser.add_argument("--rounds", type=positive, default=None, help="default 3")
    parser.add_argument("--variants", type=words_of(variants.NAMES), default=None,
                        help=f"default: all of {','.join(variants.NAMES)} that are there")
    parser.add_argument("--json", type=pathlib.Path, help="the result, default build/peers/TIME/result.json")
    parser.add_argument("--timeout-s", type=positive, default=300, help="of one variant in one round")
    parser.add_argument("--python", default=torch_gloo.default_python(), help="interpreter with torch, default %(default)s")
    parser.add_argument("--ps-lite", type=pathlib.Path, help="ps-lite's test_benchmark (untested, see README.md)")
    parser.add_argument("--tiny", action="store_true",
                        help="quick check that all variants run: small tensors, 2 hosts, 1 round of 2 iterations")
    arguments = parser.parse_args()
    defaults = {"hosts": [2], "networks": ["tiny"], "iterations": 2, "rounds": 1} if arguments.tiny else {
        "hosts": [2, 4], "networks": ["resnet50", "vgg19"], "iterations": 5, "rounds": 3}
    defaults["variants"] = [name for name in variants.NAMES if name != "ps-lite" or arguments.ps_lite]
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def about_peers(python):
    return {"torch": machine.first_line(python, "-c", "import torch; print(torch.__version__)"),
            "mpi": machine.first_line("mpirun", "--version")}


@dataclasses.dataclass
class Row:
    """One variant on one network and number of hosts, over all rounds."""

    hosts: int
    network: str
    variant: str
    rounds: list = dataclasses.field(default_factory=list)  # Measurement
    failure: str = None

    def seconds(self):
        return statistics.median(s for one in self.rounds for s in one.seconds) if self.rounds else None

    def cpu_seconds(self):
        per_iteration = [one.cpu_seconds / len(one.seconds) for one in self.rounds if one.cpu_seconds is not None]
        return statistics.median(per_iteration) if per_iteration else None

    def to_json(self):
        return {"hosts": self.hosts, "network": self.network, "variant": self.variant,
                "seconds_per_iteration": self.seconds(), "cpu_seconds_per_iteration": self.cpu_seconds(),
                "rounds": [dataclasses.asdict(one) for one in self.rounds], "failure": self.failure}


def check_network_was_used(variant, sent_bytes, parameter_bytes, job):
    """Nobody sums over hosts with less than this; who seems to has found a way around the network."""
    least = 2 * (job.hosts.count - 1) * parameter_bytes * job.iterations
    if sent_bytes < 0.9 * least:
        raise ProcessError(f"{variant}: the hosts sent {sent_bytes} bytes and cannot have synchronised with less than "
                           f"{least}: part of the data did not go through their network cards")


def run_group(count, network, chosen, arguments, folder, mpi_program):
    """All rounds of all variants for one number of hosts and one network."""
    rows = {variant.name: Row(count, network, variant.name) for variant in chosen}
    parameter_bytes = sum(networks.tensors(networks.NETWORKS[network]())) * ELEMENT_BYTES
    sizes = folder / f"{network}.txt"
    sizes.write_text(networks.sizes_text(network))
    for number in range(arguments.rounds):
        # In turn, and each round begins with another one.
        shift = number % len(chosen)
        for variant in chosen[shift:] + chosen[:shift]:
            row = rows[variant.name]
            if row.failure:
                continue
            # Fresh hosts for everybody: nothing is left of the one before, not even a connection that is closing.
            with hosts.NamespaceHosts(count) as made:
                job = Job(hosts=made, sizes=sizes, iterations=arguments.iterations,
                          folder=folder / "logs" / f"{count}-{network}-{variant.name}-{number}",
                          timeout_s=arguments.timeout_s, node=BUILD / "bin" / "poseidon-bench-node",
                          python=arguments.python, mpi_program=mpi_program, ps_lite=arguments.ps_lite)
                try:
                    result = variant.run(job, parameter_bytes)
                    check_network_was_used(variant.name, made.sent_bytes(), parameter_bytes, job)
                except ProcessError as error:
                    row.failure = str(error)
                    print(f"{count} hosts, {network}, round {number + 1}: {variant.name} FAILED: {error}\n"
                          f"all logs: {job.folder}", flush=True)
                    continue
            row.rounds.append(result)
            print(f"{count} hosts, {network}, round {number + 1}: {variant.name} "
                  f"{statistics.median(result.seconds):.3f} s", flush=True)
    return list(rows.values())


def print_table(rows):
    def cell(value, base=None):
        if value is None or base == 0:
            return f"{'-':>12}"
        return f"{value:12.4f}" if base is None else f"{value / base:12.2f}"

    ours = next((row for row in rows if row.variant == "poseidon" and row.rounds), None)
    sizes = networks.tensors(networks.NETWORKS[rows[0].network]())
    print(f"\n{rows[0].hosts} hosts, {rows[0].network}: {len(sizes)} tensors, {sum(sizes)} parameters, "
          f"{sum(sizes) * ELEMENT_BYTES / 2**20:.1f} MiB")
    print(f"{'':16}{'per iteration, median':>24}{'peer / poseidon':>24}")
    print(f"{'variant':16}{'seconds':>12}{'CPU seconds':>12}{'seconds':>12}{'CPU':>12}")
    for row in rows:
        if not row.rounds:
            print(f"{row.variant:16}{'failed':>12}")
            continue
        line = f"{row.variant:16}{cell(row.seconds())}{cell(row.cpu_seconds())}"
        if ours:
            line += cell(row.seconds(), ours.seconds()) + cell(row.cpu_seconds(), ours.cpu_seconds())
        print(line + ("  (later rounds failed)" if row.failure else ""))


def write_json(path, head, rows):
    ours = {(row.hosts, row.network): row for row in rows if row.variant == "poseidon" and row.rounds}
    out = []
    for row in rows:
        entry = row.to_json()
        base = ours.get((row.hosts, row.network))
        if base and row.rounds:
            entry["seconds_over_poseidon"] = row.seconds() / base.seconds()
            if row.cpu_seconds() is not None and base.cpu_seconds():
                entry["cpu_seconds_over_poseidon"] = row.cpu_seconds() / base.cpu_seconds()
        out.append(entry)
    machine.write_result(path, {**head, "rows": out})


def main():
    arguments = parse_arguments()
    machine.clean_up_on_signals()
    reason = hosts.why_not()
    if reason:
        sys.exit(f"run.sh: {reason}")
    chosen = []
    for variant in variants.make(arguments.variants, BUILD / "bin" / "poseidon-bench-node", arguments.python,
                                 arguments.ps_lite):
        if variant.why_not:
            print(f"{variant.name}: skipped: {variant.why_not}", flush=True)
        else:
            chosen.append(variant)
    if not chosen:
        sys.exit("run.sh: no variant is left to run")
    folder, head = machine.begin_run("peers")
    head["machine"] |= about_peers(arguments.python)
    head["arguments"] = machine.as_json(arguments)
    hosts.remove_stale()
    mpi_program = None
    if any(variant.name.startswith("mpi") for variant in chosen):
        mpi_program = open_mpi.compile_program(FOLDER / "mpi_allreduce.c", folder)
    rows = []
    for count in arguments.hosts:
        for network in arguments.networks:
            group = run_group(count, network, chosen, arguments, folder, mpi_program)
            print_table(group)
            print(flush=True)
            rows += group
            # After every group: an interrupted run keeps what it has.
            result = arguments.json or folder / "result.json"
            write_json(result, head, rows)
    print(f"all rounds: {result}")
    if any(row.failure for row in rows):
        sys.exit(1)
    shutil.rmtree(folder / "logs", ignore_errors=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("run.sh: interrupted; the hosts are removed")
    except (hosts.HostsError, ProcessError) as error:
        sys.exit(f"run.sh: {error}")
