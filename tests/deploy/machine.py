"""What the tests of installing share: this build's packages, and a Debian made for the purpose."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("POSEIDON_BUILD", ROOT / "build" / "release"))
# What an operator reads, in the order in which the commands are run.
PAGES = [ROOT / "docs" / f"{name}.md" for name in ("install", "run", "drain", "monitor", "failures", "checkpoints")]
# To make a Debian from the network, on a machine that is busy with other tests. Less than ctest waits.
MOST_DEBIAN_S = 1500


@dataclasses.dataclass
class Block:
    """Commands of a page, ```sh on=WHERE."""

    place: str
    where: list
    text: str


def command_blocks(default):
    """Those of the pages, in their order; `default`: where, when a block does not say."""
    found, block, fence = [], None, None
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if fence is None and line.startswith("```"):
                fence = line[3:].split()
                block = Block(f"{page.name}, line {number}", [default], "")
                for word in fence[1:]:
                    if word.startswith("on="):
                        block.where = word[3:].split(",")
            elif fence is not None and line.startswith("```"):
                if fence[:1] == ["sh"]:
                    found.append(block)
                fence = None
            elif fence is not None:
                block.text += line + "\n"
    return found


def run(test, *command, timeout_s=600, **arguments):
    """What the command printed; the test fails when the command does."""
    if "input" not in arguments:
        arguments["stdin"] = subprocess.DEVNULL
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            timeout=timeout_s, check=False, **arguments)
    test.assertEqual(result.returncode, 0, f"{command}:\n{result.stdout[-4000:]}")
    return result.stdout


def mounted_below(folder):
    """What is mounted at the folder or in it, the deepest and then the latest first."""
    folder = str(pathlib.Path(folder).resolve())
    # proc(5): space, tab, newline and backslash are written in octal.
    plain = lambda text: re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
    lines = pathlib.Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines()
    points = [plain(line.split(" ")[1]) for line in reversed(lines)]
    return sorted((p for p in points if p == folder or p.startswith(folder + "/")), key=lambda p: -p.count("/"))


def remove_tree(folder):
    """Removes what a test has made. A command that was killed may have left this machine's /dev, or a file system of its,
    mounted in there: all is unmounted before, and nothing removed while anything still is mounted."""
    for point in mounted_below(folder):
        for command in (["umount"], ["umount", "--lazy"]):
            if subprocess.run([*command, point], stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0:
                break
    left = mounted_below(folder)
    if left:
        raise RuntimeError(f"{folder} is not removed: still mounted there are {', '.join(left)}; umount them, then remove it")
    shutil.rmtree(folder, ignore_errors=True)


def make_packages(test, folder):
    """Every package of this build, in a folder that has nothing else."""
    with tempfile.TemporaryDirectory(prefix="poseidon-cpack-", dir=BUILD) as made:
        run(test, "cpack", "--config", BUILD / "CPackConfig.cmake", "-B", made, cwd=BUILD)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for package in pathlib.Path(made).glob("*.deb"):
            shutil.copy(package, folder)


def make_next_version(test, packages, upgrade):
    """The same packages as their next version, VERSION+next, whose configuration of the server has another line."""
    upgrade.mkdir()
    for package in packages.iterdir():
        with tempfile.TemporaryDirectory(prefix="poseidon-next-", dir=BUILD) as made:
            inside = pathlib.Path(made) / "package"
            run(test, "dpkg-deb", "--raw-extract", package, inside)
            control = inside / "DEBIAN/control"
            text = control.read_text()
            version = re.search(r"^Version: (.*)$", text, re.MULTILINE).group(1)
            control.write_text(text.replace(version, f"{version}+next"))
            configuration = inside / "etc/poseidon/server.json"
            if configuration.exists():
                configuration.write_text(configuration.read_text() + "\n")
            run(test, "dpkg-deb", "--root-owner-group", "-Znone", "--build", inside, upgrade)


def mirror():
    """Where this machine gets its Debian 12 from."""
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"],
                            capture_output=True, text=True, check=True).stdout.split("\n")
    sites = [line.split()[0] for line in listed if line.split()[1:] == ["bookworm"]]
    return sites[0] if sites else None


def make_debian(test, where, *options):
    """A minimal Debian 12: a folder, or a tar file by its name. `options`: of mmdebstrap."""
    site = mirror()
    if site is None:
        test.skipTest("this machine's apt knows no Debian 12 (bookworm) to make another one from")
    try:
        urllib.request.urlopen(f"{site.rstrip('/')}/dists/bookworm/InRelease", timeout=30).close()
    except OSError as error:
        test.skipTest(f"no network to make another Debian from: {error}")
    # `timeout` asks all of its processes to end, so that it can unmount what it has mounted.
    run(test, "timeout", "--kill-after=30", MOST_DEBIAN_S, "mmdebstrap", "--quiet", "--variant=apt", *options, "bookworm", where, site,
        timeout_s=MOST_DEBIAN_S + 60)
