"""The Debian packages on a fresh machine: installed, started by systemd, trained with, killed, frozen, upgraded, removed, purged;
and removed and purged where nothing is booted.

The machine is a Debian 12 made for the purpose, booted with systemd in a container without a network. Needs root and
the tools below, and says so when it is skipped.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from machine import BUILD, ROOT, make_debian, make_next_version, make_packages, remove_tree, run

TOOLS = ("cpack", "dpkg-shlibdeps", "mmdebstrap", "systemd-nspawn")
INSIDE = pathlib.Path(__file__).with_name("inside.sh")


def missing_tools():
    return [tool for tool in TOOLS if shutil.which(tool) is None]


@unittest.skipIf(os.geteuid() != 0, "installing packages and starting containers takes root")
@unittest.skipIf(missing_tools(), f"not installed: {', '.join(missing_tools())} (deploy/dependencies.sh --tests)")
class Packages(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="poseidon-packages-", dir=BUILD))
        self.addCleanup(remove_tree, self.folder)
        self.machine = self.folder / "machine"

    @staticmethod
    def on_gpus():
        """Where the CUDA device is built it is a package of its own."""
        return ["worker-cuda"] if (BUILD / "bin/libposeidon_cuda.so").exists() else []

    def make_machine(self, packages, upgrade):
        """With these packages installed, as somebody would who has downloaded them."""
        make_debian(self, self.machine, "--include=systemd-sysv,dbus", f"--customize-hook=copy-in {packages} {upgrade} /",
                    '--customize-hook=chroot "$1" sh -c "apt-get install -y --no-install-recommends /packages/*.deb"')

    def give_job(self):
        job = json.loads((ROOT / "deploy" / "jobs" / "digits.json").read_text())
        shutil.copytree(ROOT / "tests" / "data" / "digits", self.machine / "srv" / "digits")
        for source in (job["data"]["train"], job["data"]["test"]):
            for key in ("images", "labels"):
                source[key] = "/srv/digits/" + pathlib.Path(source[key]).name
        job["iterations"] = 100
        job["optimizer"] = {"type": "sgd", "learning_rate": 0.01}  # one worker alone would diverge with the example's
        (self.machine / "srv" / "job.json").write_text(json.dumps(job))

    def nspawn(self, *arguments, **options):
        return run(self, "systemd-nspawn", "--quiet", "--directory", self.machine, "--private-network", "--register=no",
                   "--keep-unit", *arguments, **options)

    def boot(self):
        """Runs inside.sh in the booted machine; what it printed."""
        unit = self.machine / "etc/systemd/system/inside.service"
        unit.write_text("[Service]\nType=oneshot\nExecStart=/bin/bash /inside.sh booted\nStandardOutput=file:/inside.log\n"
                        "StandardError=inherit\nTimeoutStartSec=300\nExecStopPost=systemctl --no-block poweroff\n")
        wants = self.machine / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / "inside.service").symlink_to("/etc/systemd/system/inside.service")
        self.nspawn("--boot", timeout_s=400)
        log = self.machine / "inside.log"
        return log.read_text() if log.exists() else ""

    def test_from_install_to_purge(self):
        packages = self.folder / "packages"
        make_packages(self, packages)
        self.assertEqual(sorted(p.name.split("_")[0] for p in packages.iterdir()),
                         [f"poseidon-{part}" for part in ("cli", "common", "coordinator", "server", "worker", *self.on_gpus())])
        make_next_version(self, packages, self.folder / "upgrade")
        self.make_machine(packages, self.folder / "upgrade")
        shutil.copy(INSIDE, self.machine / "inside.sh")
        said = self.nspawn("--as-pid2", "/bin/bash", "/inside.sh", "chroot")
        self.assertIn("\nALL DONE\n", said)
        self.give_job()
        log = self.boot()
        self.assertTrue(log.endswith("ALL DONE\n"), log[-6000:])


class Units(unittest.TestCase):
    @unittest.skipIf(shutil.which("systemd-analyze") is None, "systemd-analyze is not installed")
    def test_are_well_hardened(self):
        # In tenths; what systemd calls OK ends at 5.0. Modules are loaded by root.
        for role, limit in (("coordinator", 25), ("server", 25), ("worker", 25), ("gpu", 50)):
            unit = ROOT / "deploy" / "systemd" / f"poseidon-{role}.service"
            result = subprocess.run(["systemd-analyze", "security", "--offline=yes", f"--threshold={limit}", "--no-pager", unit],
                                    capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual(result.returncode, 0, result.stdout[-2000:] + result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
