"""The Debian packages on a fresh machine: installed, started by systemd, trained with, killed, frozen, upgraded, purged.

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
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("POSEIDON_BUILD", ROOT / "build" / "release"))
TOOLS = ("cpack", "dpkg-shlibdeps", "mmdebstrap", "systemd-nspawn")
INSIDE = pathlib.Path(__file__).with_name("inside.sh")


def missing_tools():
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def mirror():
    """Where this machine gets its Debian 12 from."""
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"],
                            capture_output=True, text=True, check=True).stdout.split("\n")
    sites = [line.split()[0] for line in listed if line.split()[1:] == ["bookworm"]]
    return sites[0] if sites else None


@unittest.skipIf(os.geteuid() != 0, "installing packages and starting containers takes root")
@unittest.skipIf(missing_tools(), f"not installed: {', '.join(missing_tools())} (deploy/dependencies.sh --tests)")
class Packages(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="poseidon-packages-", dir=BUILD))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.machine = self.folder / "machine"

    def run_or_fail(self, *command, timeout_s=600, **arguments):
        result = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False, **arguments)
        self.assertEqual(result.returncode, 0, f"{command}:\n{result.stdout[-4000:]}")
        return result.stdout

    def make_machine(self, packages):
        """A minimal Debian with these packages installed, as somebody would who has downloaded them."""
        site = mirror()
        if site is None:
            self.skipTest("this machine's apt knows no Debian 12 (bookworm) to make another one from")
        try:
            urllib.request.urlopen(f"{site.rstrip('/')}/dists/bookworm/InRelease", timeout=30).close()
        except OSError as error:
            self.skipTest(f"no network to make another Debian from: {error}")
        self.run_or_fail("mmdebstrap", "--quiet", "--variant=apt", "--include=systemd-sysv,dbus",
                         f"--customize-hook=copy-in {packages} /",
                         '--customize-hook=chroot "$1" sh -c "apt-get install -y --no-install-recommends /packages/*.deb"',
                         "bookworm", self.machine, site)

    def give_job(self):
        job = json.loads((ROOT / "deploy" / "jobs" / "digits.json").read_text())
        shutil.copytree(ROOT / "tests" / "data" / "digits", self.machine / "srv" / "digits")
        for source in (job["data"]["train"], job["data"]["test"]):
            for key in ("images", "labels"):
                source[key] = "/srv/digits/" + pathlib.Path(source[key]).name
        job["iterations"] = 100
        del job["optimizer"]["schedule"]
        (self.machine / "srv" / "job.json").write_text(json.dumps(job))

    def boot(self):
        """Runs inside.sh in the booted machine; what it printed."""
        shutil.copy(INSIDE, self.machine / "inside.sh")
        unit = self.machine / "etc/systemd/system/inside.service"
        unit.write_text("[Service]\nType=oneshot\nExecStart=/bin/bash /inside.sh\nStandardOutput=file:/inside.log\n"
                        "StandardError=inherit\nTimeoutStartSec=300\nExecStopPost=systemctl --no-block poweroff\n")
        wants = self.machine / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / "inside.service").symlink_to("/etc/systemd/system/inside.service")
        self.run_or_fail("systemd-nspawn", "--quiet", "--directory", self.machine, "--boot", "--private-network",
                         "--register=no", "--keep-unit", timeout_s=400)
        log = self.machine / "inside.log"
        return log.read_text() if log.exists() else ""

    def test_from_install_to_purge(self):
        made = self.folder / "made"
        self.run_or_fail("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", made, cwd=BUILD)
        packages = self.folder / "packages"
        packages.mkdir()
        for package in made.glob("*.deb"):
            shutil.copy(package, packages)
        self.assertEqual(sorted(p.name.split("_")[0] for p in packages.iterdir()),
                         [f"poseidon-{part}" for part in ("cli", "common", "coordinator", "server", "worker")])
        self.make_machine(packages)
        self.give_job()
        log = self.boot()
        self.assertTrue(log.endswith("ALL DONE\n"), log[-6000:])


class Units(unittest.TestCase):
    @unittest.skipIf(shutil.which("systemd-analyze") is None, "systemd-analyze is not installed")
    def test_are_well_hardened(self):
        for role in ("coordinator", "server", "worker"):
            unit = ROOT / "deploy" / "systemd" / f"poseidon-{role}.service"
            # In tenths; what systemd calls OK ends at 5.0.
            result = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=25", "--no-pager", unit],
                                    capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual(result.returncode, 0, result.stdout[-2000:] + result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
