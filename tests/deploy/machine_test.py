"""What a test of installing removes afterwards: its own folder, and nothing that is mounted in it. Mounting takes root."""

import os
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

import machine


def mount(*arguments):
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)


class RemoveTree(unittest.TestCase):
    def setUp(self):
        self.kept = pathlib.Path(tempfile.mkdtemp(prefix="poseidon-kept-"))
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="poseidon remove-"))
        self.addCleanup(machine.remove_tree, self.kept)
        self.addCleanup(machine.remove_tree, self.folder)
        (self.kept / "file").write_text("another's")

    def mount_in(self, where):
        """As a killed mmdebstrap leaves /dev and what is mounted in it."""
        where.mkdir(parents=True)
        mounted = mount("--bind", self.kept, where)
        if mounted.returncode != 0:
            self.skipTest(f"cannot mount here: {mounted.stderr}")
        return where

    def mount_dev(self):
        dev = self.mount_in(self.folder / "machine/dev")
        (self.kept / "pts").mkdir()
        self.assertEqual(mount("-t", "tmpfs", "none", dev / "pts").returncode, 0)
        return dev

    def test_removes_a_folder(self):
        (self.folder / "a").mkdir()
        machine.remove_tree(self.folder)
        self.assertFalse(self.folder.exists())

    @unittest.skipIf(os.geteuid() != 0, "mounting takes root")
    def test_unmounts_first(self):
        dev = self.mount_dev()
        self.assertEqual(machine.mounted_below(self.folder), [str(dev / "pts"), str(dev)])
        self.assertEqual(machine.mounted_below(f"{self.folder}/machine/de"), [], "a name that only begins so")
        machine.remove_tree(self.folder)
        self.assertFalse(self.folder.exists())
        self.assertEqual((self.kept / "file").read_text(), "another's")

    @unittest.skipIf(os.geteuid() != 0, "mounting takes root")
    def test_unmounts_what_is_in_use(self):
        dev = self.mount_dev()
        with open(dev / "file", encoding="utf-8") as held:
            machine.remove_tree(self.folder)
            self.assertFalse(self.folder.exists())
            self.assertEqual(held.read(), "another's")

    @unittest.skipIf(os.geteuid() != 0, "mounting takes root")
    def test_removes_nothing_while_anything_is_mounted(self):
        dev = self.mount_dev()
        failed = subprocess.CompletedProcess([], 32)
        with mock.patch("machine.subprocess.run", return_value=failed):
            with self.assertRaisesRegex(RuntimeError, f"{dev}"):
                machine.remove_tree(self.folder)
        self.assertEqual((dev / "file").read_text(), "another's")


if __name__ == "__main__":
    unittest.main(verbosity=2)
