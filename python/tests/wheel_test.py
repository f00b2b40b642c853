"""The wheel of a build: made by pip, it has what a script needs, and its library is found beside the package."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import support

PYTHON = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = pathlib.Path(os.environ.get("POSEIDON_BUILD", PYTHON.parent / "build/release")).resolve() / "bin" / "libposeidon_client.so"


def pip_makes_wheels():
    """By another process: setuptools changes the one that imports it."""
    program = "import setuptools\ntry: import setuptools.command.bdist_wheel\nexcept ImportError: import wheel.bdist_wheel"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


@unittest.skipUnless(pip_makes_wheels(), "this Python has no pip, setuptools or wheel")
@unittest.skipUnless(LIBRARY.exists(), f"{LIBRARY} is not built")
class WheelTest(unittest.TestCase):
    def test_has_the_package_and_its_library(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        # Of a copy, since setuptools leaves files beside what it packs.
        shutil.copytree(PYTHON, folder / "checkout" / "python", ignore=shutil.ignore_patterns("tests", "__pycache__"))
        shutil.copy(PYTHON.parent / "CMakeLists.txt", folder / "checkout")
        made = subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder,
                               folder / "checkout" / "python"], capture_output=True, text=True, check=False,
                              env=os.environ | {"POSEIDON_CLIENT_LIBRARY": str(LIBRARY)})
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        wheel, = folder.glob("*.whl")
        self.assertRegex(wheel.name, r"^poseidon_torch-[0-9.]+-py3-none-linux_")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "site")
            names = set(archive.namelist())
        sources = {str(path.relative_to(PYTHON)) for path in (PYTHON / "poseidon").rglob("*.py")}
        self.assertLessEqual(sources | {"poseidon/libposeidon_client.so"}, names)
        self.assertEqual([name for name in names if "test" in name], [])
        environment = {key: value for key, value in os.environ.items() if key != "POSEIDON_CLIENT_LIBRARY"}
        found = subprocess.run([sys.executable, "-c", "from poseidon import _library; print(_library.load()._name)"], capture_output=True,
                               text=True, check=False, cwd=folder, env=environment | {"PYTHONPATH": str(folder / "site")})
        self.assertEqual(found.stdout.strip(), str(folder / "site" / "poseidon" / "libposeidon_client.so"), found.stderr)


if __name__ == "__main__":
    support.main()
