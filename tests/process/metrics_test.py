"""Metrics, dashboards and alerts on a live cluster with Debian's Prometheus: what docs/metrics.md says is what is
scraped, every query of every panel finds data, every alert can be evaluated, and a lost worker is told."""

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import unittest
import urllib.error
import urllib.parse
import urllib.request

from cluster import BUILD, PLUGIN, ROOT, Cluster, Here, ProcessTest, digits_job, poseidon, wait_for, worker_with_gpu

DASHBOARDS = sorted((ROOT / "dashboards" / "grafana" / "dashboards").glob("*.json"))
RULES = ROOT / "dashboards" / "prometheus"
TARGETS_IN_CONFIGURATION = "/var/lib/poseidon/coordinator/prometheus-targets.json"
WINDOW = "10s"  # in place of Grafana's $__rate_interval
FAKE_NVML = BUILD / "tests" / "libposeidon_fake_nvml.so"  # tests/twins/fake_nvml.cc
HAS_GPU = PLUGIN.exists()  # without headers of CUDA and cuDNN a build has no emulated one
# An emulated GPU takes its time with convolutions.
SMALL = {"name": "small", "input": [1, 28, 28], "layers": [
    {"name": "conv", "type": "convolution", "outputs": 4, "kernel": 5, "stride": 2},
    {"name": "ip1", "type": "fully_connected", "outputs": 64},
    {"name": "relu", "type": "relu"},
    {"name": "ip2", "type": "fully_connected", "outputs": 10},
    {"name": "loss", "type": "softmax_cross_entropy"},
    {"name": "accuracy", "type": "accuracy", "inputs": ["ip2"]}]}
# Selectors of alerts that find nothing as long as all is well.
ABSENT_WHEN_WELL = {
    'poseidon_node_state{role="worker",state="lost"}': "one series per node, of the state it is in; a_lost_worker_is_told has it",
    'poseidon_node_state{role="server",state="lost"}': "likewise; a server's loss is recovery_test.py's",
}


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error}: {error.read().decode()}") from None


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def documented():
    """name -> (type, set of labels, row) of the tables in docs/metrics.md."""
    rows = {}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = re.fullmatch(r"`(poseidon_\w+)`", cells[0])
        if name and len(cells) >= 4:
            rows[name.group(1)] = (cells[1], {label for label in cells[2].split(", ") if label}, line)
    return rows


def is_absent_here(row):
    return not HAS_GPU and "absent without an NVIDIA GPU" in row


def selectors(expression):
    """Every selector of a PromQL expression with its label matchers, and then with each of the values alone that
    a regular expression lists: series that should all be there."""
    found = set()
    for name, matchers in re.findall(r"(?<![\w:])(poseidon[_:][\w:]+|up(?=\{))(?:\{([^}]*)\})?", expression):
        parts = re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers)
        found.add(name + "{" + ",".join(f'{label}{how}"{value}"' for label, how, value in parts) + "}" if parts else name)
        for label, how, value in parts:
            for alternative in value.split("|") if how in ("=~", "!~") else []:
                rest = [part for part in parts if part[0] != label]
                found.add(name + "{" + ",".join(f'{l}{h}"{v}"' for l, h, v in [(label, "=", alternative), *rest]) + "}")
    return found


def scraped(page):
    """name -> (type, set of labels) of one /metrics."""
    metrics = {name: (kind, set()) for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE)}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? ", page, re.MULTILINE):
        base = name if name in metrics else re.sub(r"_(bucket|sum|count)$", "", name)
        metrics[base][1].update(set(re.findall(r"(\w+)=\"", labels)) - {"le", "quantile"})
    return metrics


class Prometheus:
    def __init__(self, test, targets):
        configuration = (RULES / "prometheus.yml").read_text()
        test.assertIn(TARGETS_IN_CONFIGURATION, configuration)
        configuration = configuration.replace(TARGETS_IN_CONFIGURATION, str(targets)).replace("_interval: 5s", "_interval: 1s")
        (test.folder / "prometheus.yml").write_text(configuration)
        shutil.copy(RULES / "alerts.yml", test.folder)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.process = test.start("prometheus", "prometheus", f"--config.file={test.folder / 'prometheus.yml'}",
                                  f"--storage.tsdb.path={test.folder / 'tsdb'}",
                                  f"--web.listen-address={self.url.removeprefix('http://')}")
        wait_for("Prometheus to be ready", self._ready)

    def _ready(self):
        try:
            return get(f"{self.url}/-/ready")
        except (AssertionError, OSError):
            return None

    def ask(self, path, **parameters):
        return json.loads(get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))["data"]

    def values(self, expression):
        """[(labels, value)] without what is no number."""
        found = [(series["metric"], float(series["value"][1])) for series in self.ask("query", query=expression)["result"]]
        return [(labels, value) for labels, value in found if not math.isnan(value)]

    def targets(self):
        return {target["scrapeUrl"]: target["health"] for target in self.ask("targets")["activeTargets"]}

    def alert(self, name):
        return [alert for alert in self.ask("alerts")["alerts"] if alert["labels"]["alertname"] == name]


class OnOwnAddresses(Here):
    """Workers on other addresses of the loopback are other machines to the planner, so that the job is calibrated. They
    find a library that stands for NVIDIA's."""

    def __init__(self, folder):
        self.libraries = folder / "nvml"
        self.libraries.mkdir()
        os.symlink(FAKE_NVML, self.libraries / "libnvidia-ml.so.1")

    def command(self, name, arguments):
        return ["env", f"LD_LIBRARY_PATH={self.libraries}", *arguments] if name.startswith("worker") else arguments


@unittest.skipIf(shutil.which("prometheus") is None or shutil.which("promtool") is None,
                 "SKIPPED: no prometheus here (deploy/dependencies.sh --tests installs it)")
class LivePrometheus(ProcessTest):
    def setUp(self):
        super().setUp()
        # With TLS, for the metrics of certificates.
        self.assertEqual(poseidon("tls", "init", "--to", self.folder / "tls").returncode, 0)
        self.cluster = Cluster(self, metrics=True, place=OnOwnAddresses(self.folder),
                               proofs=lambda role: ["--tls-dir", self.folder / "tls" / role])
        self.cluster.add(workers=0, servers=2)
        self.program = {"program": worker_with_gpu(self.folder)} if HAS_GPU else {}
        for host in ("127.0.0.2", "127.0.0.3"):
            self.add_worker(host)
        self.targets_file = self.folder / "state" / "prometheus-targets.json"
        # One layer by factors; the other's scheme is left to the plan, or nothing would be measured for it.
        job = digits_job(model=SMALL, iterations=1000000, test_every_iterations=20, sync={"scheme": {"ip1": "sfb"}},
                         checkpoint={"every_iterations": 20, "keep": 2}, membership={"replace_timeout_ms": 120000})
        submitted = self.cluster.submit(job, "--workers", 2, "--servers", 2, run_dir=self.folder / "run")
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        self.prometheus = Prometheus(self, self.targets_file)

    def add_worker(self, host):
        return self.cluster.add_worker("--listen", f"{host}:0", "--device", "cuda:0" if HAS_GPU else "cpu", **self.program)

    def test_everything(self):
        self.cluster.wait_for_iteration(50)
        self.every_daemon_is_scraped(5)
        wait_for("a checkpoint", lambda: self.prometheus.values("poseidon_checkpoint_bytes > 0"))
        self.pages_are_what_the_documents_say()
        self.every_query_of_every_panel_has_data()
        self.every_alert_can_be_evaluated()
        self.a_lost_worker_is_told_and_replaced()

    def every_daemon_is_scraped(self, count):
        def all_up():
            health = self.prometheus.targets()
            return len(health) == count and set(health.values()) == {"up"} and health

        return wait_for(f"{count} targets that are up", all_up)

    def pages_are_what_the_documents_say(self):
        pages = {target["labels"]["daemon"]: get(f"http://{target['targets'][0]}/metrics")
                 for target in json.loads(self.targets_file.read_text())}
        self.assertEqual(set(pages), {"coordinator", "server", "worker"})
        for target in json.loads(self.targets_file.read_text()):
            self.assertEqual(get(f"http://{target['targets'][0]}/healthz"), "ok\n", target)
        seen = {}
        for daemon, page in pages.items():
            lint = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False)
            self.assertEqual((lint.returncode, lint.stdout, lint.stderr), (0, "", ""), daemon)
            for name, (kind, labels) in scraped(page).items():
                before = seen.setdefault(name, (kind, set()))
                self.assertEqual(before[0], kind, name)
                before[1].update(labels)
        rows = documented()
        self.assertEqual(set(seen) - set(rows), set(), "metrics without a row in docs/metrics.md")
        missing = {name for name in set(rows) - set(seen) if not is_absent_here(rows[name][2])}
        self.assertEqual(missing, set(), "rows of docs/metrics.md without a metric")
        for name, (kind, labels) in seen.items():
            self.assertEqual((kind, labels), rows[name][:2], name)

    def every_query_of_every_panel_has_data(self):
        self.assertEqual(len(DASHBOARDS), 5)
        one = "poseidon_gpu_memory_bytes" if HAS_GPU else "poseidon_images_total"
        worker = next(labels["instance"] for labels, _ in self.prometheus.values(one))
        asked, lines = 0, {}
        for path in DASHBOARDS:
            dashboard = json.loads(path.read_text())
            for variable in dashboard["templating"]["list"]:
                if variable["type"] != "query":
                    continue
                metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
                self.assertTrue(self.prometheus.ask(f"label/{label}/values", **{"match[]": metric}), variable["name"])
            for panel in dashboard["panels"]:
                for target in panel.get("targets", []):
                    instance = worker if path.name == "worker.json" else ".+"
                    expression = target["expr"].replace("$__rate_interval", WINDOW).replace("$instance", instance)
                    self.assertNotIn("$", expression.replace(instance, ""), "an unknown variable")
                    if not HAS_GPU and "poseidon_gpu_" in expression:
                        self.prometheus.values(expression)  # at least a query
                        continue
                    wait_for(f"data of {path.name}, {panel['title']}: {expression}",
                             lambda asked=expression: self.prometheus.values(asked))
                    asked += 1
                    # One line of several may be of nothing: a stage that is misspelt, say.
                    for selector in selectors(re.sub(r'instance=~"[^"]*",? ?', "", expression)):
                        lines.setdefault(selector, f"{path.name}, {panel['title']}")
        for selector, where in lines.items():
            wait_for(f"{selector}, for which {where} asks", lambda asked=selector: self.prometheus.values(asked))
        print(f"{asked} queries and {len(lines)} selectors of {len(DASHBOARDS)} dashboards have data")
        self.assertGreater(asked, 60)

    def every_alert_can_be_evaluated(self):
        def rules():
            all_rules = [rule for group in self.prometheus.ask("rules")["groups"] for rule in group["rules"]]
            return all(rule["health"] != "unknown" for rule in all_rules) and all_rules

        found = wait_for("all rules to be evaluated", rules)
        self.assertEqual({rule["name"]: rule.get("lastError", "") for rule in found if rule["health"] != "ok"}, {})
        alerts = [rule for rule in found if rule["type"] == "alerting"]
        self.assertGreaterEqual(len(alerts), 15)
        asked = {}
        for rule in found:
            wanted = selectors(rule["query"])
            self.assertTrue(wanted, rule["name"])
            asked.update({selector: rule["name"] for selector in wanted})
        self.assertLessEqual(set(ABSENT_WHEN_WELL), set(asked), "exceptions for which no rule asks")
        for selector, rule in asked.items():
            if selector in ABSENT_WHEN_WELL:
                self.assertEqual(self.prometheus.values(selector), [])
                continue
            wait_for(f"{selector}, for which {rule} asks", lambda asked=selector: self.prometheus.values(asked))
        print(f"{len(asked) - len(ABSENT_WHEN_WELL)} selectors of {len(found)} rules have data")
        # Healthy but for the machine's load and disk: nobody is lost, nothing failed.
        quiet = {"PoseidonWorkerLost", "PoseidonServerLost", "PoseidonDaemonDown", "PoseidonCheckpointFailed", "PoseidonJobFailed",
                 "PoseidonLossNotFinite", "PoseidonReplicasDiffer", "PoseidonStoreErrors", "PoseidonRecoversOften",
                 "PoseidonTrainingStandsStill", "PoseidonCheckpointTooOld", "PoseidonCertificateExpires", "PoseidonRefusedConnections"}
        self.assertLessEqual(quiet, {rule["name"] for rule in alerts})
        self.assertEqual({name for name in quiet if self.prometheus.alert(name)}, set())

    def a_lost_worker_is_told_and_replaced(self):
        before = set(self.prometheus.targets())
        lost = self.cluster.workers[0]
        rank = re.search(r"worker (\d) is ready", lost.log()).group(1)
        lost.signal(signal.SIGKILL)
        alert, = wait_for("the alert", lambda: self.prometheus.alert("PoseidonWorkerLost"))
        self.assertEqual((alert["labels"]["rank"], alert["labels"]["severity"]), (rank, "warning"))
        self.assertRegex(alert["annotations"]["summary"], rf"Worker {rank} at 127.0.0.2:\d+ is lost: start a poseidon-worker")
        self.assertEqual(len(wait_for("its target to go", lambda: before - set(self.prometheus.targets()))), 1)
        self.add_worker("127.0.0.2")
        self.every_daemon_is_scraped(5)
        self.cluster.wait_for_state("running")
        wait_for("the alert to go", lambda: not self.prometheus.alert("PoseidonWorkerLost"))
        wait_for("the recovery to be counted",
                 lambda: self.prometheus.values('poseidon_recoveries_total{reason="worker_lost"} == 1'))
        wait_for("the departure to be counted",
                 lambda: self.prometheus.values('poseidon_departures_total{role="worker", how="lost"} == 1'))


class WithoutPrometheus(ProcessTest):
    def test_values_that_are_no_numbers_are_counted(self):
        """The job is over within milliseconds; the counts stay for whoever asks then, and its layers go."""
        cluster = Cluster(self, metrics=True).add(workers=1, servers=1)
        job = digits_job(iterations=200, test_every_iterations=0)
        job["optimizer"]["learning_rate"] = 1e6
        del job["optimizer"]["schedule"]
        submitted = cluster.submit(job, "--workers", 1, "--servers", 1, "--wait")
        self.assertEqual(submitted.returncode, 1, submitted.stdout + submitted.stderr)
        pages = {target["labels"]["daemon"]: f"http://{target['targets'][0]}/metrics"
                 for target in json.loads((self.folder / "state" / "prometheus-targets.json").read_text())}
        wait_for("the worker to have ended its job", lambda: "poseidon_layer_" not in get(pages["worker"]))
        self.assertIn('poseidon_training_faults_total{fault="not_finite"} 1\n', get(pages["worker"]))
        coordinator = get(pages["coordinator"])
        self.assertIn('poseidon_jobs_total{result="failed"} 1\n', coordinator)
        self.assertIn('poseidon_job_state{state="failed"} 1\n', coordinator)
        self.assertIn('poseidon_members{role="worker",state="idle"} 1\n', coordinator)

    def test_the_list_of_targets_outlives_the_coordinator(self):
        """So that Prometheus goes on with the nodes, which go on training."""
        cluster = Cluster(self, metrics=True).add(workers=1, servers=1)
        targets = self.folder / "state" / "prometheus-targets.json"
        wait_for("three targets", lambda: targets.exists() and len(json.loads(targets.read_text())) == 3)
        cluster.coordinator.signal(signal.SIGKILL)
        cluster.coordinator.wait()
        left = json.loads(targets.read_text())
        self.assertEqual(sorted(target["labels"]["daemon"] for target in left), ["coordinator", "server", "worker"])
        worker, = (target["targets"][0] for target in left if target["labels"]["daemon"] == "worker")
        wait_for("the worker to have noticed",
                 lambda: 'poseidon_retries_total{peer="coordinator"} 1' in get(f"http://{worker}/metrics"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
