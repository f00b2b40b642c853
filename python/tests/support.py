"""What the tests share: the path of the package, and torch or a word that it is missing. Called by: all tests here."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

try:
    import torch
except ImportError:
    torch = None


def main():
    """Runs the calling script's tests; without torch it says so and succeeds."""
    if torch is None:
        print("skipped: torch is not installed")
        sys.exit(0)
    torch.set_num_threads(1)
    unittest.main(module="__main__", verbosity=2)
