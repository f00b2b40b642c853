"""`pip wheel python/` from a checkout: the package with the client library in it. README.md says what it needs.

The library is that of POSEIDON_CLIENT_LIBRARY, or of build/release, which is built where it is missing.
"""

import os
import pathlib
import platform
import re
import subprocess

import setuptools
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # older than 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAME = "libposeidon_client.so"


def version():
    return re.search(r"project\(poseidon VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def library():
    named = os.environ.get("POSEIDON_CLIENT_LIBRARY")
    if named:
        return pathlib.Path(named)
    built = ROOT / "build/release/bin" / NAME
    if not built.exists():
        subprocess.run(["cmake", "--preset", "release"], cwd=ROOT, check=True)
        subprocess.run(["cmake", "--build", "--preset", "release", "--target", "poseidon_client"], cwd=ROOT, check=True)
    return built


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        target = pathlib.Path(self.build_lib, "poseidon", NAME)
        self.mkpath(str(target.parent))
        self.copy_file(str(library()), str(target))


class PlatformWheel(bdist_wheel):
    """For any Python 3 of this kind of machine: the library is called by ctypes."""

    def get_tag(self):
        return "py3", "none", f"linux_{platform.machine()}"


class WithLibrary(setuptools.Distribution):
    def has_ext_modules(self):
        return True


setuptools.setup(version=version(), distclass=WithLibrary, cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel})
