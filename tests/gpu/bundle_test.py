"""tests/gpu/run.sh: the bundle is made, small enough, and does without this machine's libraries. No GPU is needed: its
CPU parts train in a bare Debian made for the purpose, its GPU tests say why they are skipped there, and what is broken
fails.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "deploy"))

from machine import BUILD, run  # noqa: E402

TOOLS = ("dpkg-query", "systemd-nspawn")
# Everything that a part of the bundle could reach by mistake.
BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}


def missing_tools():
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def essential_packages():
    """Those that every Debian has, and what they need: of this machine's, so that no network is wanted."""
    fields = "${Package}\\t${Priority}\\t${Essential}\\t${Pre-Depends}, ${Depends}\\n"
    listed = subprocess.run(["dpkg-query", "-W", f"-f={fields}"], capture_output=True, text=True, check=True).stdout
    needs, wanted = {}, []
    for name, priority, essential, depends in (line.split("\t") for line in listed.splitlines()):
        needs[name] = re.findall(r"(?:^|[,|])\s*([a-z0-9.+-]+)", depends)
        if essential == "yes" or (priority == "required" and name != "apt"):
            wanted.append(name)
    found = set()
    while wanted:
        name = wanted.pop()
        if name in needs and name not in found:
            found.add(name)
            wanted += needs[name]
    return sorted(found)


def make_bare_debian(folder):
    """This machine's essential packages alone, as a tree to run programs in."""
    folder.mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / "usr" / name).mkdir(parents=True)
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("dev", "proc", "sys", "run", "tmp", "root", "opt", "etc", "var"):
        (folder / name).mkdir(exist_ok=True)
    owned = subprocess.run(["dpkg-query", "-L", *essential_packages()], capture_output=True, text=True, check=True).stdout
    with tempfile.NamedTemporaryFile("w", suffix=".list") as names:
        for path in sorted(set(owned.split("\n"))):
            if path.startswith("/") and not path.startswith("/usr/share") and os.path.lexists(path) and (
                    os.path.islink(path) or os.path.isfile(path)) and path not in ("/bin", "/sbin", "/lib", "/lib64"):
                names.write(path[1:] + "\n")
        names.flush()
        # Through the links bin -> usr/bin and so on.
        packed = subprocess.Popen(["tar", "-C", "/", "-cf", "-", "-T", names.name], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-C", folder, "--keep-directory-symlink", "-xf", "-"], stdin=packed.stdout, check=True)
        packed.stdout.close()
        packed.wait()
    for name in ("awk", "which"):  # links that a package's scripts make
        link = folder / "usr/bin" / name
        if not link.exists() and (real := shutil.which(name)):
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.realpath(real))
    subprocess.run(["ldconfig", "-r", folder], check=True)


class Bundle(unittest.TestCase):
    archive = None  # made once, which takes most of a minute

    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="poseidon-bundle-"))
        cls.addClassCleanup(shutil.rmtree, cls.shared, ignore_errors=True)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="test-", dir=self.shared))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def packed(self):
        if Bundle.archive is None:
            out = self.shared / "bundle.tar.gz"
            run(self, ROOT / "tests/gpu/run.sh", "bundle", out, "--build", BUILD, "--no-build")
            run(self, "tar", "-xzf", out, "-C", self.shared)
            Bundle.archive = out
        return self.archive

    def copy(self):
        """By hard links: a test replaces files of it, and writes into none."""
        self.packed()
        bundle = self.folder / "bundle"
        run(self, "cp", "-al", self.shared / "poseidon-gpu", bundle)
        return bundle

    def execute(self, bundle, *options, environment=None):
        """(exit status, summary.json by part, what it printed)"""
        results = self.folder / f"results-{len(list(self.folder.iterdir()))}"
        done = subprocess.run([bundle / "run.sh", results, *options], env=BARE | (environment or {}), stdin=subprocess.DEVNULL, cwd="/",
                              capture_output=True, text=True, timeout=600, check=False)
        return done.returncode, self.read(results), done.stdout + done.stderr

    def read(self, results):
        summary = json.loads((results / "summary.json").read_text())
        xml.parse(results / "junit.xml")
        self.assertGreater((results / "logs.tar.gz").stat().st_size, 100)
        last = (results / "report.txt").read_text().splitlines()[-1]
        self.assertEqual(last, f"{summary['passed']} passed, {summary['failed']} failed")
        return {"all": summary, **{part["name"]: part for part in summary["parts"]}}

    def check_cpu_parts(self, summary, text):
        for part in ("environment", "layers", "networks", "repeated", "trajectory"):
            self.assertEqual(summary[part]["failed"], 0, text)
            self.assertGreaterEqual(summary[part]["passed"], 1, text)
        self.assertGreater(summary["layers"]["passed"], 15, text)
        self.assertIn("same bytes", summary["repeated"]["word"])

    def test_says_why_it_skips_and_fails_when_something_is_broken(self):
        bundle = self.copy()
        if not any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
            status, summary, text = self.execute(bundle, "--short")
            self.assertEqual(status, 0, text)
            self.assertEqual(summary["all"]["failed"], 0, text)
            self.assertEqual(summary["layers"]["passed"], 0, text)
            self.assertGreater(summary["layers"]["skipped"], 15, text)
            for part in ("layers", "networks", "repeated", "trajectory"):
                self.assertIn("no device cuda:0 here", summary[part]["word"])

        # Time that does not suffice is no failure, and is said.
        status, summary, text = self.execute(bundle, "--device", "cpu", "--only", "networks,racecheck", "--budget-s", "0")
        self.assertEqual(status, 0, text)
        self.assertEqual([part["name"] for part in summary["all"]["parts"]], ["networks", "racecheck"])
        self.assertEqual((summary["all"]["failed"], summary["all"]["skipped"]), (0, 2), text)
        self.assertIn("no time left of 0 s: try --only racecheck", summary["racecheck"]["word"])

        (bundle / "bin/gpu_layers_test").unlink()
        (bundle / "bin/poseidon-server").unlink()
        shutil.copy("/bin/false", bundle / "bin/poseidon-server")
        status, summary, text = self.execute(bundle, "--short", "--device", "cpu")
        self.assertEqual(status, 1, text)
        for part in ("environment", "layers", "repeated", "trajectory"):
            self.assertEqual(summary[part]["failed"], 1, f"{part}\n{text}")
        self.assertEqual(summary["networks"]["failed"], 0, "what is whole goes on")
        self.assertGreater(summary["networks"]["passed"], 3)

    def fake_gpu(self, bundle):
        """A machine with a GPU and compute-sanitizer, which runs the program, or does what FAKE_<precision> says."""
        emulated = BUILD / "emulated" / "libposeidon_cuda.so"
        if not emulated.exists():
            self.skipTest("this build has no emulated GPU: there were no headers of CUDA and cuDNN")
        plugin = bundle / "lib/poseidon/libposeidon_cuda.so"
        plugin.unlink(missing_ok=True)
        shutil.copy(emulated, plugin)
        tools = self.folder / "tools"
        tools.mkdir()
        for name, script in (
                ("nvidia-smi", '[ "${1:-}" != -L ] || echo "GPU 0: a fake"'),
                ("compute-sanitizer",
                 '[ "${1:-}" != --help ] || { echo --kernel-regex; exit; }\n'
                 f'echo "$*" >> {self.folder}/asked.txt\n'
                 'while [[ $1 != bin/* ]]; do shift; done\n'
                 'for argument; do case $argument in --precision=*) name=FAKE_${argument#*=} ;; esac; done\n'
                 'eval "${!name:-exec \\"\\$@\\"}"')):
            (tools / name).write_text(f"#!/bin/bash\n{script}\n")
            (tools / name).chmod(0o755)
        return {"PATH": f"{tools}:{BARE['PATH']}"}

    def test_the_sanitizer_sees_the_kernels_of_each_precision(self):
        bundle = self.copy()
        path = self.fake_gpu(bundle)
        only = ("--only", "memcheck,racecheck", "--budget-s", "400")
        status, summary, text = self.execute(bundle, *only, environment=path)
        self.assertEqual(status, 0, text)
        asked = (self.folder / "asked.txt").read_text().splitlines()
        self.assertEqual([(re.search(r"--tool (\w+)", line)[1], re.search(r"--precision=(\w+)", line)[1]) for line in asked],
                         [(tool, precision) for tool in ("memcheck", "racecheck") for precision in ("bf16", "fp16", "fp32")])
        for tool in ("memcheck", "racecheck"):
            counts = re.fullmatch(r"bf16 (\d+) tests, fp16 (\d+) tests, fp32 (\d+) tests", summary[tool]["word"])
            self.assertIsNotNone(counts, text)
            self.assertGreater(int(counts[1]), 15, text)
            self.assertGreater(int(counts[2]), 3, text)
            self.assertGreater(int(counts[3]), 15, text)
        # One that does not end, one that finds something, and both.
        passes, sleeps = "echo '[       OK ] one (1 ms)'; echo '[  PASSED  ] 1 test.'", "echo '[       OK ] one (1 ms)'; sleep 60"
        fakes = {"FAKE_bf16": passes, "FAKE_fp16": sleeps, "FAKE_fp32": passes}
        short = ("--only", "memcheck", "--budget-s", "25")
        status, summary, text = self.execute(bundle, *short, environment=path | fakes)
        self.assertEqual(status, 0, text)
        self.assertRegex(summary["memcheck"]["word"], r"bf16 1 tests, fp16 stopped after \d s with 1 tests, fp32 1 tests")
        for found in ({"FAKE_bf16": passes + "; exit 99"}, {"FAKE_fp16": "echo '========= Invalid __global__ read'; " + sleeps}):
            status, summary, text = self.execute(bundle, *short, environment=path | fakes | found)
            self.assertEqual((status, summary["memcheck"]["failed"]), (1, 1), text)

    def test_refuses_what_it_does_not_know(self):
        bundle = ROOT / "tests/gpu/bundle"
        for wrong in (["--device", "gpu"], ["--sort"], []):
            target = [] if not wrong else [self.folder / "results"]
            done = subprocess.run([bundle / "run.sh", *target, *wrong], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2, wrong)
            self.assertIn("./run.sh RESULTS", done.stderr)

    @unittest.skipIf(os.geteuid() != 0, "a Debian of its own takes root")
    @unittest.skipIf(missing_tools(), f"not installed: {', '.join(missing_tools())} (deploy/dependencies.sh --tests)")
    def test_runs_on_a_bare_debian(self):
        archive = self.packed()
        self.assertLess(archive.stat().st_size, 60 << 20)
        machine = self.folder / "machine"
        make_bare_debian(machine)
        run(self, "tar", "-xzf", archive, "-C", machine / "opt")
        self.assertEqual([*machine.glob("usr/lib/**/libstdc++*"), *machine.glob("usr/lib/**/libgrpc*")], [], "not so bare")
        # By its short form, on the CPU: digits are trained, twice.
        done = subprocess.run(["systemd-nspawn", "--quiet", "--directory", machine, "--private-network", "--register=no",
                               "--keep-unit", "--pipe", "/opt/poseidon-gpu/run.sh", "/results", "--short", "--device", "cpu"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, text)
        self.check_cpu_parts(self.read(machine / "results"), text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
