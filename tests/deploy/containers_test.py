"""The images and compose.yaml: built from this build's packages on a Debian made for the purpose, started by a Docker
engine of its own, healthy, trained with, killed, watched by Prometheus, taken down; by the commands of
docs/install.md (```sh on=containers) wherever it has one.

Needs root and the tools below, and says so when it is skipped.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

from machine import BUILD, ROOT, command_blocks, make_debian, make_packages, remove_tree, run

TOOLS = ("cpack", "dpkg-shlibdeps", "mmdebstrap", "dockerd", "docker", "docker-compose")
MOST_ADDED_BYTES = 120e6  # of an image to its base
# At 15 ms each: a worker that is killed soon after the first checkpoint is killed while it trains, though every command
# of this test takes seconds on a busy machine.
ITERATIONS = 1800
DAEMONS = ("coordinator", "server-1", "server-2", "worker-1", "worker-2")
# Prometheus on the same base, in place of the image from Docker Hub: same program, same options.
PROMETHEUS = """
FROM poseidon-test-base
RUN apt-get update -q && apt-get install -y --no-install-recommends prometheus && install -d -o prometheus /prometheus
USER prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
"""
# Debian has no Grafana, and Docker Hub may be out of reach.
GRAFANA = """
FROM poseidon-test-base
ENTRYPOINT ["/bin/sleep", "infinity"]
"""
# `docker compose`, where Compose is Debian's command of its own.
DOCKER = """#!/bin/sh
if [ "$1" = compose ]; then shift; exec docker-compose "$@"; fi
exec {docker} "$@"
"""


def missing_tools():
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@unittest.skipIf(os.geteuid() != 0, "a Docker engine takes root")
@unittest.skipIf(missing_tools(), f"not installed: {', '.join(missing_tools())} (deploy/dependencies.sh --tests)")
class Containers(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="poseidon-containers-", dir=BUILD))
        self.addCleanup(remove_tree, self.folder)
        commands = self.folder / "commands"
        commands.mkdir()
        (commands / "docker").write_text(DOCKER.format(docker=shutil.which("docker")))
        (commands / "docker").chmod(0o755)
        self.env = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "DOCKER_BUILDKIT": "0",
                    "DOCKER_HOST": f"unix://{self.folder}/docker.sock", "COMPOSE_PROJECT_NAME": "poseidontest",
                    "BASE": "poseidon-test-base", "PACKAGES": "ready", "BUILD_NETWORK": "host",
                    # As many as `poseidon local` gives each of two.
                    "THREADS": str(max(1, (os.cpu_count() or 1) // 2)),
                    "PROMETHEUS_IMAGE": "poseidon-test-prometheus", "GRAFANA_IMAGE": "poseidon-test-grafana"}
        self.files = ["-f", "deploy/docker/compose.yaml"]
        self.credentials = []
        # Where the page's commands are typed.
        self.tree = self.folder / "tree"
        self.blocks = iter([block for block in command_blocks(None) if block.where == ["containers"]])

    def run_or_fail(self, *command, timeout_s=300, **arguments):
        return run(self, *command, timeout_s=timeout_s, env=self.env, **arguments)

    def start_engine(self):
        log = open(self.folder / "dockerd.log", "w+", encoding="utf-8")
        self.addCleanup(log.close)
        # No bridge, networks or packet filter of those that this machine has, or another engine of it.
        engine = subprocess.Popen(["dockerd", "--bridge=none", "--iptables=false", "--ip6tables=false",
                                   "--default-address-pool=base=10.213.0.0/16,size=24", "--data-root",
                                   self.folder / "data", "--exec-root", self.folder / "run", "--pidfile",
                                   self.folder / "docker.pid", "-H", self.env["DOCKER_HOST"]],
                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(self.stop_engine, engine)
        deadline = time.monotonic() + 60
        while subprocess.run(["docker", "version"], env=self.env, capture_output=True, check=False).returncode != 0:
            if engine.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                self.skipTest("no Docker engine can run here: " + log.read()[-500:])
            time.sleep(0.2)

    def stop_engine(self, engine):
        engine.send_signal(signal.SIGTERM)
        try:
            engine.wait(60)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait(30)
        # That of containers on this machine's own network stays mounted.
        subprocess.run(["umount", self.folder / "run/netns/default"], capture_output=True, check=False)

    def make_images_to_start_from(self):
        tar = self.folder / "base.tar"
        make_debian(self, tar)
        self.run_or_fail("docker", "import", tar, "poseidon-test-base")
        tar.unlink()
        for name, file in (("prometheus", PROMETHEUS), ("grafana", GRAFANA)):
            self.run_or_fail("docker", "build", "--network=host", "-t", f"poseidon-test-{name}", "-", input=file)

    def lay_out_tree(self):
        """What the images and compose.yaml take from the sources, with a job short enough for a test."""
        for part in ("deploy", "dashboards", "tests/data/digits"):
            shutil.copytree(ROOT / part, self.tree / part)
        make_packages(self, self.tree / "build/release/packages")
        self.job = self.tree / "deploy/jobs/digits.json"
        self.write_job(ITERATIONS, **json.loads(self.job.read_text())["optimizer"])

    def write_job(self, iterations, **optimizer):
        job = json.loads(self.job.read_text())
        optimizer.pop("schedule", None)
        job.update({"iterations": iterations, "test_every_iterations": iterations, "sync": {"scheme": "ps"},
                    "checkpoint": {"every_iterations": 50}, "optimizer": optimizer})
        self.job.write_text(json.dumps(job))

    def choose_ports(self):
        """Right before they are listened on: what is free now may be somebody else's a minute later."""
        self.prometheus_port = free_port()
        self.env |= {"PROMETHEUS_PORT": str(self.prometheus_port), "GRAFANA_PORT": str(free_port())}

    def next_block(self, **replaced):
        text = next(self.blocks).text
        for before, after in replaced.items():
            self.assertIn(before, text)
            text = text.replace(before, after)
        self.run_or_fail("bash", "-euo", "pipefail", "-c", text, timeout_s=600, cwd=self.tree)

    def compose(self, *arguments, **options):
        return self.run_or_fail("docker", "compose", *self.files, *arguments, cwd=self.tree, **options)

    def container(self, service):
        return self.compose("ps", "-q", service).strip()

    def inspect(self, service, what):
        return self.run_or_fail("docker", "inspect", "-f", "{{" + what + "}}", self.container(service)).strip()

    def wait_for(self, what, condition, timeout_s):
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"{what} not within {timeout_s} s\n" + self.compose("logs", "--no-color", "--tail=10"))
            time.sleep(0.3)

    def command(self, *arguments, **options):
        return self.compose("run", "--rm", "-T", "cli", *arguments, *self.credentials, "--coordinator", "coordinator:4700",
                            **options)

    def status(self):
        text = self.command("status", "--json")
        return json.loads(text[text.index("{"):])

    def images_are_small(self):
        """What each adds to the Debian that it starts from."""
        def size(image):
            return int(self.run_or_fail("docker", "image", "inspect", "-f", "{{.Size}}", image))

        base = size("poseidon-test-base")
        for image in ("poseidon-coordinator", "poseidon-server", "poseidon-worker", "poseidon-cli"):
            added = size(image) - base
            print(f"{image}: {added / 1e6:.0f} MB and its base of {base / 1e6:.0f} MB")
            self.assertLess(added, MOST_ADDED_BYTES, image)

    def targets(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.prometheus_port}/api/v1/targets", timeout=10) as answer:
            return json.load(answer)["data"]["activeTargets"]

    def refused_without(self, option):
        """An operator who proves nothing is told what he lacks."""
        refused = subprocess.run(["docker", "compose", *self.files, "run", "--rm", "-T", "cli", "submit", "deploy/jobs/digits.json",
                                  "--coordinator", "coordinator:4700"], env=self.env, cwd=self.tree, capture_output=True,
                                 text=True, timeout=120, check=False)
        self.assertEqual(refused.returncode, 1, refused.stdout + refused.stderr)
        self.assertIn(option, refused.stderr)

    def wait_for_all_idle(self):
        def idle():
            status = self.status()
            return [node["state"] for node in status["workers"] + status["servers"]] == ["idle"] * 4

        self.wait_for("two servers and two workers", idle, 60)

    def lets_in_who_knows_the_token(self):
        self.refused_without("--join-token-file")
        self.credentials = ["--join-token-file", "/etc/poseidon/token"]
        self.wait_for_all_idle()

    def trains_with_tls_and_not_without(self):
        self.refused_without("--tls-dir")
        self.credentials = ["--tls-dir", "/etc/poseidon/tls"]
        self.wait_for_all_idle()
        # One without end for doctor, which a fast machine would have finished by then; and one to its end.
        self.write_job(10_000_000, type="sgd", learning_rate=0.001)
        self.command("submit", "deploy/jobs/digits.json", "--workers", "2", "--servers", "2")
        self.wait_for("the TLS cluster to train", lambda: self.status()["iteration"] > 0, 60)
        text = self.command("doctor", "--json")
        told = json.loads(text[text.index("{"):])
        self.assertEqual(len(told["metrics"]), len(DAEMONS), told["notes"])
        self.command("stop", "--checkpoint-within-s", "0")
        self.write_job(100, type="sgd", learning_rate=0.001)
        self.command("submit", "deploy/jobs/digits.json", "--workers", "2", "--servers", "2", "--wait")
        self.assertEqual(self.status()["state"], "done")
        self.wait_for("Prometheus' five healthy targets, with TLS",
                      lambda: [t["health"] for t in self.targets()] == ["up"] * len(DAEMONS), 60)

    def runs_one_by_one_on_the_network_of_the_host(self):
        names = [f"poseidon-{daemon}" for daemon in ("coordinator", "server", "worker")]
        self.addCleanup(subprocess.run, ["docker", "rm", "-fv", *names], env=self.env, capture_output=True, check=False)
        # This machine is all of them.
        self.next_block(**{"10.0.0.1": "127.0.0.1"})
        ask = ["docker", "run", "--rm", "--network", "host", "-v", f"{self.tree}/tls/operator:/etc/poseidon/tls:ro",
               "poseidon-cli", "status", "--coordinator", "127.0.0.1:4700"]

        def members():
            text = self.run_or_fail(*ask, "--json", "--tls-dir", "/etc/poseidon/tls")
            status = json.loads(text[text.index("{"):])
            return [[node["address"] for node in status[group]] for group in ("servers", "workers")]

        self.wait_for("one server and one worker", lambda: members() == [["127.0.0.1:4701"], ["127.0.0.1:4702"]], 30)
        # The option goes before what the image sets; and what the page shows is not open to everybody.
        logs = {name: self.run_or_fail("docker", "logs", name) for name in names}
        self.assertIn("listening on 127.0.0.1:4700\n", logs["poseidon-coordinator"])
        self.assertIn("listening on 0.0.0.0:4701\n", logs["poseidon-server"])
        for name, log in logs.items():
            self.assertNotIn("MAY COMMAND THIS PROCESS", log, name)
        refused = subprocess.run(ask, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(refused.returncode, 1, refused.stdout)
        self.assertIn("--tls-dir is needed here too", refused.stderr)

    def test_a_cluster_from_its_start_to_its_end(self):
        self.start_engine()
        self.make_images_to_start_from()
        self.lay_out_tree()
        self.addCleanup(subprocess.run, ["docker", "compose", "-f", "deploy/docker/compose.yaml", "down", "-v"], env=self.env,
                        cwd=self.tree, capture_output=True, check=False)
        self.compose("build", timeout_s=600)  # the block finds it done, and starts at once
        self.choose_ports()
        self.next_block()  # build, start, submit
        self.images_are_small()
        # Read from the log, which takes a tenth of the time of a command in a container of its own: the job goes on meanwhile.
        self.wait_for("the first checkpoint",
                      lambda: "checkpoint 1-50 is committed" in self.compose("logs", "coordinator"), 180)
        # By the host, not by `docker kill`, which the engine takes for the operator's wish.
        os.kill(int(self.inspect("worker-1", ".State.Pid")), signal.SIGKILL)
        self.wait_for("the worker's restart", lambda: self.inspect("worker-1", ".RestartCount") == "1", 30)
        # Process 1 at the same address, as before, and yet another one: a lost worker, no more.
        self.wait_for("the worker to be missed", lambda: "was lost: it" in self.compose("logs", "coordinator"), 30)
        self.assertNotIn("an earlier coordinator", self.compose("logs", "coordinator"))
        for daemon in DAEMONS:
            # The first check comes ten seconds after the start, which the job may be faster than.
            self.wait_for(f"{daemon} to be healthy",
                          lambda name=daemon: self.inspect(name, ".State.Health.Status") == "healthy", 60)
            self.assertEqual(json.loads(self.inspect(daemon, "json .State.Health.Log"))[-1]["Output"].strip(), "ok", daemon)
            self.assertNotEqual(self.compose("exec", "-T", daemon, "id", "-u").strip(), "0")
            written = subprocess.run(["docker", "exec", self.container(daemon), "touch", "/usr/bin/x"], env=self.env,
                                     capture_output=True, text=True, check=False)
            self.assertIn("Read-only file system", written.stderr)
        self.wait_for("the job's end", lambda: self.status()["state"] in ("done", "failed"), 240)
        status = self.status()
        self.assertEqual(status["state"], "done", status)

        there = self.folder / "model.safetensors"
        run_directory = "/var/lib/poseidon/coordinator/runs/digits-1"
        self.run_or_fail("docker", "cp", f"{self.container('coordinator')}:{run_directory}/model.safetensors", there)
        here = self.folder / "local"
        self.run_or_fail(BUILD / "bin/poseidon", "local", self.job, "--workers=2", "--servers=2", "--run-dir", here)
        self.assertEqual(there.read_bytes(), (here / "model.safetensors").read_bytes(),
                         "the containers' model is another one than that of the same job outside")

        self.wait_for("Prometheus' five healthy targets",
                      lambda: [t["health"] for t in self.targets()] == ["up"] * len(DAEMONS), 60)
        plain = self.files
        self.next_block()  # a join token
        self.files = [*plain, "-f", "deploy/docker/compose.token.yaml"]
        self.lets_in_who_knows_the_token()
        self.next_block()  # TLS
        self.files = [*plain, "-f", "deploy/docker/compose.tls.yaml"]
        self.trains_with_tls_and_not_without()
        containers = {daemon: self.container(daemon) for daemon in DAEMONS}
        self.compose("stop")
        for daemon, container in containers.items():
            self.assertEqual(self.run_or_fail("docker", "inspect", "-f", "{{.State.ExitCode}}", container).strip(), "0", daemon)
        self.next_block()  # stop, down
        self.assertEqual(self.run_or_fail("docker", "volume", "ls", "-q").strip(), "")
        self.runs_one_by_one_on_the_network_of_the_host()
        self.assertIsNone(next(self.blocks, None), "a block of the page that nobody has tried")


if __name__ == "__main__":
    unittest.main(verbosity=2)
