"""TLS, roles and join tokens with real daemons: a job trains to the same bytes, and whoever does not belong is refused,
counted and told why."""

import contextlib
import json
import os
import pathlib
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import unittest
import urllib.request

from cluster import BIN, Cluster, Here, OnHosts, ProcessTest, digits_job, poseidon, wait_for

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "common"))
import hosts  # noqa: E402  (the benchmark's network)

SHORT = 60  # iterations
HALF_A_HANDSHAKE = """
import socket, sys
clients = [socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) for _ in range(4)]
for client in clients:
    client.sendall(b"\\x16")
for client in clients:
    while client.recv(4096):
        pass
print("hung up")
"""


def short_job():
    return digits_job(iterations=SHORT, test_every_iterations=SHORT, checkpoint={"every_iterations": 30})


def resident_bytes(pid):
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class FewFiles(Here):
    """The coordinator may open few files, half of them for connections."""
    FILES = 400

    def command(self, name, arguments):
        limit = ["bash", "-c", f'ulimit -n {self.FILES}; exec "$@"', "bash"] if name == "coordinator" else []
        return [*limit, *arguments]


class Proxy:
    """Sits between a client and the coordinator, with certificates of its own."""

    def __init__(self, target, folder):
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.seen = b""  # what a client sent through TLS
        self.server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server_side.load_cert_chain(folder / "coordinator" / "tls.crt", folder / "coordinator" / "tls.key")
        self.server_side.set_alpn_protocols(["h2"])
        self.handshakes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        client.settimeout(5)
        with contextlib.suppress(OSError), self.server_side.wrap_socket(client, server_side=True) as wrapped:
            self.handshakes += 1
            while data := wrapped.recv(4096):
                self.seen += data

    def close(self):
        self.listener.close()


class BusyDoor:
    """In front of the coordinator: closes the first connections as one at its limit does, then passes bytes on."""

    def __init__(self, target, refusals):
        self.host, self.port = target.rsplit(":", 1)
        self.refusals = refusals
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                if self.refusals > 0:
                    self.refusals -= 1
                    client.close()
                    continue
                server = socket.create_connection((self.host, int(self.port)), timeout=60)
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass_on(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self):
        self.listener.close()


# For `openssl ca`, which lets one choose when a certificate ends.
AUTHORITY = """[ca]
default_ca = one
[one]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
"""


def expired(authority, role, to):
    """A --tls-dir like that of the role, by the same authority, but over since 2020."""
    shutil.copytree(authority / role, to)
    (to / "authority.cnf").write_text(AUTHORITY)
    (to / "index.txt").write_text("")
    (to / "serial").write_text("4711\n")
    for command in (["x509", "-x509toreq", "-copy_extensions", "copy", "-in", "tls.crt", "-signkey", "tls.key", "-out", "request.pem"],
                    ["ca", "-batch", "-notext", "-config", "authority.cnf", "-cert", authority / "ca" / "ca.crt",
                     "-keyfile", authority / "ca" / "ca.key", "-startdate", "20200101000000Z", "-enddate", "20200102000000Z",
                     "-in", "request.pem", "-out", "tls.crt"]):
        subprocess.run(["openssl", *command], cwd=to, check=True, capture_output=True, timeout=60)
    return to


class Tls(ProcessTest):
    def setUp(self):
        super().setUp()
        self.ours = self.certificates("ours")

    def certificates(self, name):
        made = poseidon("tls", "init", "--to", self.folder / name)
        self.assertEqual(made.returncode, 0, made.stderr)
        return self.folder / name

    def proofs(self, folder):
        return lambda role: ["--tls-dir", folder / role]

    def cluster(self, **options):
        return Cluster(self, proofs=self.proofs(self.ours), metrics=True, **options)

    def metrics_of(self, process):
        url = wait_for("the metrics address", lambda: re.search(r"metrics at (http://\S+)", process.log())).group(1)
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    def refused(self, process):
        """reason -> how many of poseidon_refused_connections_total."""
        found = re.findall(r'^poseidon_refused_connections_total\{reason="(\w+)",role="\w+"\} (\d+)', self.metrics_of(process),
                           re.MULTILINE)
        return {reason: int(count) for reason, count in found if int(count)}

    def wait_refused(self, process, reason, more_than=0):
        return wait_for(f"{process.name} to count {reason} more than {more_than} times",
                        lambda: self.refused(process).get(reason, 0) > more_than)

    def status_with(self, cluster, *proofs, address=None):
        result = poseidon("status", "--coordinator", address or cluster.address, "--connect-timeout-s", 1, *proofs)
        self.assertNotEqual(result.returncode, 0, result.stdout)
        return result.stderr

    def train(self, cluster, name):
        cluster.add(workers=2, servers=2)
        done = cluster.submit(short_job(), "--workers", 2, "--servers", 2, "--wait", run_dir=self.folder / name)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return (self.folder / name / "model.safetensors").read_bytes()

    def test_a_job_trains_to_the_same_bytes_and_a_checkpoint_is_exported(self):
        cluster = self.cluster(options=["--log-level", "debug"])
        model = self.train(cluster, "with-tls")
        exported = cluster.poseidon("checkpoint", "export", "--to", self.folder / "exported.safetensors")
        self.assertEqual(exported.returncode, 0, exported.stderr)
        self.assertEqual((self.folder / "exported.safetensors").read_bytes(), model)
        processes = [cluster.coordinator, *cluster.workers, *(process for process, _ in cluster.servers)]
        secrets = [line for key in self.ours.glob("*/*.key") for line in key.read_text().splitlines()
                   if "-----" not in line and len(line) > 16]  # the last may be too short to mean anything
        self.assertGreaterEqual(len(secrets), 6)  # of the authority and of five roles
        for process in processes:
            self.assertEqual(self.refused(process), {}, process.name)
            self.assertRegex(self.metrics_of(process), r"(?m)^poseidon_certificate_expiry_time_seconds \d")
            self.assertNotIn("PRIVATE KEY", process.log())
            for line in secrets:
                self.assertNotIn(line, process.log(), process.name)
        self.assertIn("through shared memory", self.ended(cluster.workers[0]))
        for process in processes:
            process.destroy()
        (self.folder / "state").rename(self.folder / "state-of-tls")
        for index in range(2):
            (self.folder / f"server-{index}").rename(self.folder / f"server-{index}-of-tls")
        self.assertEqual(self.train(Cluster(self), "without"), model)

    def test_over_sockets_too(self):
        cluster = self.cluster()
        cluster.add_server()
        for _ in range(2):
            cluster.add_worker("--no-shared-memory")
        done = cluster.submit(short_job(), "--workers", 2, "--wait")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("sent 0 MB of tensors through shared memory", self.ended(cluster.workers[0]))

    def ended(self, process):
        process.popen.terminate()
        process.wait(15)
        return process.log()

    def test_who_does_not_belong_is_refused_counted_and_told(self):
        cluster = self.cluster()
        server = cluster.add_server()
        wait_for("the server to join", lambda: len(cluster.status()["servers"]) == 1)
        coordinator = cluster.coordinator
        theirs = self.certificates("theirs")

        # Our own programs do not even begin with somebody else's certificate.
        said = self.status_with(cluster, "--tls-dir", self.ours / "worker")
        self.assertIn("is that of a worker, not of an operator", said)
        impostor = self.start("impostor", *self.server_command(cluster, self.ours / "worker"))
        self.assertEqual(impostor.wait(20), 2)
        self.assertIn("is that of a worker, not of a server", impostor.log())

        # Plain text.
        said = self.status_with(cluster)
        self.assertIn("--tls-dir is needed here too", said)
        self.wait_refused(coordinator, "handshake")
        self.assertIn("the other side speaks plain text", coordinator.log())

        # Certificates of another authority: the client refuses us, and we refuse a client that does not mind.
        said = self.status_with(cluster, "--tls-dir", theirs / "operator")
        self.assertIn("is signed by another authority", said)
        self.handshake(cluster.address, theirs / "operator")
        self.wait_refused(coordinator, "unknown_ca")

        # No certificate.
        self.handshake(cluster.address, None)
        self.wait_refused(coordinator, "no_certificate")
        self.assertIn("it sent no certificate", coordinator.log())

        # One that is over: our own programs do not begin with it, and whoever shows it all the same is told.
        late = expired(self.ours, "operator", self.folder / "late")
        said = self.status_with(cluster, "--tls-dir", late)
        self.assertIn("has expired", said)
        self.assertIn("2020-01-02", said)
        self.handshake(cluster.address, late)
        self.wait_refused(coordinator, "expired")
        self.assertRegex(coordinator.log(), r"\(expired\).*2020-01-02")

        # The same at a server's port, which operators ask for checkpoints only.
        address = cluster.servers[0][1]
        self.handshake(address, None)
        self.wait_refused(server, "no_certificate")
        self.assertEqual(len(cluster.status()["servers"]), 1)

    def handshake(self, address, folder):
        """As somebody who trusts everybody; the connection must be closed in our face."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if folder is not None:
            context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        host, port = address.rsplit(":", 1)
        try:
            with socket.create_connection((host, int(port)), timeout=10) as plain, context.wrap_socket(plain) as wrapped:
                wrapped.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
                self.assertEqual(wrapped.recv(1), b"")
        except (ssl.SSLError, ConnectionError):
            pass

    def server_command(self, cluster, folder):
        return [BIN / "poseidon-server", "--coordinator", cluster.address, "--listen", "127.0.0.1:0", "--data-dir",
                self.folder / "impostor-data", "--tls-dir", folder]

    def test_a_man_in_the_middle_sees_nothing(self):
        cluster = self.cluster()
        proxy = Proxy(cluster.address, self.certificates("theirs"))
        self.addCleanup(proxy.close)
        said = self.status_with(cluster, "--tls-dir", self.ours / "operator", address=proxy.address)
        self.assertIn("is signed by another authority", said)
        self.assertIn("another party answers in between", said)
        worker = cluster.start("misled", "poseidon-worker", "--coordinator", proxy.address, "--metrics-listen", "127.0.0.1:0",
                               "--tls-dir", self.ours / "worker")
        self.wait_refused(worker, "unknown_ca")
        wait_for("the worker to say why", lambda: "cannot reach the coordinator at" in worker.log() and "another authority" in worker.log())
        self.assertEqual(proxy.seen, b"")
        self.assertEqual(cluster.status()["workers"], [])

    def test_a_worker_in_the_place_of_the_coordinator_is_not_believed(self):
        """It has a certificate of the right authority, but not the role."""
        cluster = self.cluster()
        worker = cluster.start("lonely", "poseidon-worker", "--coordinator", cluster.address, "--listen", "127.0.0.1:0",
                               "--address-file", self.folder / "lonely.address", "--tls-dir", self.ours / "worker")
        address = wait_for("its address", lambda: (self.folder / "lonely.address").exists()
                           and (self.folder / "lonely.address").read_text().strip())
        said = self.status_with(cluster, "--tls-dir", self.ours / "operator", address=address)
        self.assertIn("is that of a worker, not of a coordinator", said)
        self.assertTrue(worker.running())

    def test_a_flood_of_connections_starves_nobody(self):
        """More than the coordinator may have, from one address, while a job trains: it stays reachable for its members, no
        memory is used up, and it comes back once the flood is over."""
        cluster = self.cluster(place=FewFiles())
        cluster.add(workers=2, servers=1)
        endless = digits_job(iterations=1000000, test_every_iterations=0)
        submitted = cluster.submit(endless, "--workers", 2)
        self.assertEqual(submitted.returncode, 0)
        self.assertIn(f"poseidon status --coordinator {cluster.address} --tls-dir {self.ours / 'operator'}\n", submitted.stdout)
        cluster.wait_for_iteration(5)
        coordinator = cluster.coordinator
        before = resident_bytes(coordinator.pid)
        host, port = cluster.address.rsplit(":", 1)
        with contextlib.ExitStack() as flood:
            for _ in range(2 * FewFiles.FILES):
                with contextlib.suppress(OSError):
                    flood.enter_context(socket.create_connection((host, int(port)), timeout=5))
            self.assertTrue(coordinator.running(), coordinator.log())
            self.assertLess(resident_bytes(coordinator.pid) - before, 64 << 20)
            self.wait_refused(coordinator, "too_many", more_than=FewFiles.FILES // 2)
        status = cluster.wait_for_state("running")
        self.assertIn("refuses connections (too_many)", status["message"], "for a minute after the last")
        begin = status["iteration"]
        cluster.wait_for_iteration(begin + 20)
        self.assertEqual([worker["state"] for worker in cluster.status()["workers"]], ["running", "running"])
        self.assertEqual(cluster.status()["epoch"], 1, "nobody was given up")

    def test_who_was_refused_once_gets_in_later(self):
        """The coordinator was full for a moment: the command's next attempt to connect goes all the way."""
        cluster = self.cluster()
        door = BusyDoor(cluster.address, refusals=2)
        self.addCleanup(door.close)
        result = poseidon("status", "--coordinator", door.address, "--tls-dir", self.ours / "operator")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(door.refusals, 0)

    def test_tls_against_plain_text_is_told(self):
        plain = Cluster(self)
        said = self.status_with(plain, "--tls-dir", self.ours / "operator")
        self.assertIn("does the other side speak plain text?", said)
        self.assertNotIn("MAY COMMAND THIS PROCESS", plain.coordinator.log())

    def test_wrong_files_are_named_at_the_start(self):
        cluster = Cluster(self)
        nothing = self.start("nothing", *self.server_command(cluster, self.ours / "nowhere"))
        self.assertEqual(nothing.wait(20), 2)
        self.assertIn("--tls-dir", nothing.log())
        self.assertIn("nowhere/ca.crt", nothing.log())
        (self.ours / "server" / "tls.key").chmod(0o644)
        exposed = self.start("exposed", *self.server_command(cluster, self.ours / "server"))
        self.assertEqual(exposed.wait(20), 2)
        self.assertIn("chmod 600", exposed.log())


class Tokens(ProcessTest):
    def token(self, name, text):
        path = self.folder / name
        path.write_text(text + "\n")
        path.chmod(0o600)
        return path

    def test_with_the_token_a_job_trains_and_without_nobody_is_let_in(self):
        secret = "c2VjcmV0IHNlY3JldCBzZWNyZXQ="
        right = self.token("right", secret)
        wrong = self.token("wrong", secret[:-2] + "x=")
        cluster = Cluster(self, metrics=True, proofs=lambda role: ["--join-token-file", right], options=["--log-level", "debug"])
        cluster.add(workers=1, servers=1)
        done = cluster.submit(short_job(), "--workers", 1, "--wait")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for proofs, words in (([], "asks for a join token"), (["--join-token-file", wrong], "is not this cluster's")):
            refused = poseidon("status", "--coordinator", cluster.address, *proofs)
            self.assertEqual(refused.returncode, 1, refused.stdout)
            self.assertIn(words, refused.stderr)
            self.assertIn("--join-token-file", refused.stderr)
            self.assertNotIn(secret, refused.stderr)
        worker = cluster.start("stranger", "poseidon-worker", "--coordinator", cluster.address)
        self.assertEqual(worker.wait(20), 1)
        self.assertIn("asks for a join token", worker.log())
        page = Tls.metrics_of(self, cluster.coordinator)
        count = lambda reason: int(re.search(rf'reason="{reason}",role="coordinator"}} (\d+)$', page, re.MULTILINE)[1])
        self.assertGreaterEqual(count("no_token"), 2)  # the status and the stranger, who may have tried again
        self.assertEqual(count("wrong_token"), 1)
        for process in (cluster.coordinator, cluster.servers[0][0], cluster.workers[0], worker):
            self.assertNotIn(secret, process.log())
            self.assertNotIn(secret[:-2] + "x=", process.log())


@unittest.skipIf(hosts.why_not(), f"no namespaces here: {hosts.why_not()}")
class Pages(ProcessTest):
    """Metrics and status page of a coordinator on host 0; who asks sits on host 1."""

    def setUp(self):
        super().setUp()
        self.assertIsNotNone(shutil.which("curl"), "deploy/dependencies.sh --tests installs curl")
        hosts.remove_stale()
        self.network = hosts.NamespaceHosts(2)
        try:
            self.network.__enter__()
        except hosts.HostsError as error:
            self.skipTest(str(error))
        self.addCleanup(self.network.__exit__)
        self.ours, self.theirs = (self.folder / name for name in ("ours", "theirs"))
        for folder in (self.ours, self.theirs):
            self.assertEqual(poseidon("tls", "init", "--to", folder).returncode, 0)

    def begin(self, proofs, pages="0.0.0.0:0"):
        place = OnHosts(self.network, servers=0)
        address = place.address("coordinator")
        process = self.start("coordinator", *place.command("coordinator", [
            BIN / "poseidon-coordinator", "--listen", f"{address}:0", "--state-dir", self.folder / "state",
            "--metrics-listen", pages, "--status-listen", pages, *proofs]))
        found = wait_for("the pages' addresses", lambda: re.search(
            r"metrics at (\w+)://\S+:(\d+)/metrics(?s:.*)status page at (\w+)://\S+:(\d+)/", process.log()))
        self.schemes, self.metrics_port, self.status_port = {found[1], found[3]}, found[2], found[4]
        return process

    def ask(self, port, path, *options, host=1, scheme="https", name="daemon.poseidon.internal", address=None):
        """(curl's exit code, HTTP status, body)."""
        asked = subprocess.run([str(word) for word in self.network.command(host, [
            "curl", "--noproxy", "*", "--silent", "--max-time", "10", "--write-out", "\n%{http_code}", "--resolve",
            f"{name}:{port}:{address or self.network.address(0)}", *options, f"{scheme}://{name}:{port}{path}"])],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
        body, _, status = asked.stdout.rpartition("\n")
        return asked.returncode, int(status or 0), body

    def shown(self, folder, role):
        return ["--cacert", self.ours / role / "ca.crt", "--cert", folder / role / "tls.crt", "--key", folder / role / "tls.key"]

    def refused(self):
        _, status, page = self.ask(self.metrics_port, "/metrics", *self.shown(self.ours, "monitor"))
        self.assertEqual(status, 200, page)
        return {reason: int(count) for reason, count in
                re.findall(r'^poseidon_refused_connections_total\{reason="(\w+)",role="coordinator"\} (\d+)', page, re.MULTILINE)
                if int(count)}

    def test_who_may_read_and_who_is_told_why_not(self):
        process = self.begin(["--tls-dir", self.ours / "coordinator"])
        self.assertEqual(self.schemes, {"https"})
        self.assertNotIn("to everybody", process.log())
        self.assertNotIn("without a password", process.log())
        for role in ("monitor", "operator"):
            code, status, page = self.ask(self.metrics_port, "/metrics", *self.shown(self.ours, role))
            self.assertEqual((code, status), (0, 200), page)
            self.assertIn("\nposeidon_build_info", page)
            code, status, page = self.ask(self.status_port, "/api/v1/status", *self.shown(self.ours, role))
            self.assertEqual((code, status), (0, 200), page)
            self.assertEqual(json.loads(page)["state"], "idle")
        self.assertEqual(self.refused(), {})
        # By the name of the role, too.
        code, status, _ = self.ask(self.metrics_port, "/metrics", *self.shown(self.ours, "monitor"),
                                   name="coordinator.poseidon.internal")
        self.assertEqual((code, status), (0, 200))

        trusting = ["--cacert", self.ours / "monitor" / "ca.crt"]
        late = expired(self.ours, "monitor", self.folder / "late")
        for options, reason, words in (
                (self.shown(self.ours, "worker"), "wrong_role", "is that of a worker, not of an operator or a monitor"),
                (trusting, "no_certificate", "it sent no certificate"),
                (["--cacert", self.ours / "monitor" / "ca.crt", "--cert", late / "tls.crt", "--key", late / "tls.key"],
                 "expired", "2020-01-02"),
                (self.shown(self.theirs, "monitor"), "unknown_ca", "is signed by another authority")):
            for port, path in ((self.metrics_port, "/metrics"), (self.status_port, "/")):
                code, status, page = self.ask(port, path, *options)
                self.assertEqual((code, status), (0, 403), page)
                self.assertIn(words, page)
                self.assertNotIn("poseidon_build_info", page)
            self.assertEqual(self.refused()[reason], 2)
            self.assertRegex(process.log(), rf"refused \S*{re.escape(self.network.address(1))} \({reason}\)")
        # Plain text gets nothing, and who is somebody else is not believed.
        code, status, page = self.ask(self.metrics_port, "/metrics", scheme="http")
        self.assertEqual((code != 0, status, page), (True, 0, ""))
        wait_for("the handshake to be counted", lambda: self.refused().get("handshake") == 1)
        code, status, _ = self.ask(self.metrics_port, "/metrics", "--cacert", self.theirs / "monitor" / "ca.crt")
        self.assertEqual((code, status), (60, 0))
        code, status, _ = self.ask(self.metrics_port, "/metrics", *self.shown(self.ours, "monitor"), "--tls-max", "1.1")
        self.assertEqual((code != 0, status), (True, 0))

    def test_half_a_handshake_costs_nothing_and_is_cut_off(self):
        process = self.begin(["--tls-dir", self.ours / "coordinator"])

        def cpu_s():
            fields = pathlib.Path(f"/proc/{process.popen.pid}/stat").read_text().rsplit(")")[-1].split()
            return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

        before = cpu_s()
        # The first byte of a handshake, and no more; then until the server hangs up, at most 20 s.
        half = subprocess.run(self.network.command(1, [sys.executable, "-c", HALF_A_HANDSHAKE, self.network.address(0),
                                                       self.metrics_port]),
                              capture_output=True, text=True, timeout=40, check=False)
        self.assertEqual(half.stdout, "hung up\n", half.stderr)
        # Ten seconds of four threads that turn in circles would be twenty times as much on one core.
        self.assertLess(cpu_s() - before, 1)

    def test_this_machine_alone_needs_no_certificate(self):
        self.begin(["--tls-dir", self.ours / "coordinator"])
        for port, path in ((self.metrics_port, "/metrics"), (self.status_port, "/")):
            done = subprocess.run(self.network.command(0, ["curl", "--noproxy", "*", "--silent", "--max-time", "10", "--write-out", "%{http_code}",
                                                           "--output", "/dev/null", f"http://127.0.0.1:{port}{path}"]),
                                  capture_output=True, text=True, timeout=20, check=False)
            self.assertEqual(done.stdout, "200")
            # By its other addresses it is somebody like all others; its own name may stand for 127.0.1.1.
            for address in (self.network.address(0), "127.0.1.1"):
                self.assertNotEqual(self.ask(port, path, host=0, scheme="http", address=address)[0], 0)
                shown = self.shown(self.ours, "monitor")
                self.assertEqual(self.ask(port, path, *shown, host=0, address=address)[:2], (0, 200))

    def test_prometheus_is_told_who_speaks_tls(self):
        self.begin(["--tls-dir", self.ours / "coordinator"], pages=f"{self.network.address(0)}:0")
        targets = wait_for("the targets", lambda: (self.folder / "state" / "prometheus-targets.json").exists() and json.loads(
            (self.folder / "state" / "prometheus-targets.json").read_text()))
        self.assertEqual(targets, [{"targets": [f"{self.network.address(0)}:{self.metrics_port}"],
                                    "labels": {"daemon": "coordinator", "__scheme__": "https"}}])

    def test_without_tls_all_may_read_and_that_is_told(self):
        process = self.begin([])
        self.assertEqual(self.schemes, {"http"})
        self.assertEqual(self.ask(self.metrics_port, "/metrics", scheme="http")[:2], (0, 200))
        self.assertIn("to everybody", process.log())
        self.assertIn("without a password", process.log())


class Warnings(ProcessTest):
    def test_listening_beyond_this_machine_with_neither_is_told_loudly(self):
        token = Tokens.token(self, "token", "c2VjcmV0IHNlY3JldCBzZWNyZXQ=")
        # Nobody listens at the discard port: they begin without a coordinator, too.
        daemons = {"coordinator": ["--state-dir"], "server": ["--coordinator", "127.0.0.1:9", "--data-dir"],
                   "worker": ["--coordinator", "127.0.0.1:9"]}
        for role, arguments in daemons.items():
            for name, listen, proofs, warned in (("open", "0.0.0.0:0", [], True), ("loopback", "127.0.0.1:0", [], False),
                                                 ("protected", "0.0.0.0:0", ["--join-token-file", token], False)):
                folder = [self.folder / f"{role}-{name}-data"] if arguments[-1].endswith("-dir") else []
                address = self.folder / f"{role}-{name}.address"
                process = self.start(f"{role}-{name}", BIN / f"poseidon-{role}", *arguments, *folder, "--listen", listen,
                                     "--address-file", address, *proofs)
                wait_for(f"{process.name} to listen", lambda made=address: made.exists())
                # Before it listens.
                self.assertEqual("ANYBODY WHO REACHES 0.0.0.0:0 MAY COMMAND THIS PROCESS" in process.log(), warned, process.log())
                process.destroy()


if __name__ == "__main__":
    unittest.main()
