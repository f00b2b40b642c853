"""Poseidon for programs that train with a framework of their own. `poseidon.torch` is the front end for PyTorch."""

from poseidon.errors import Ended, Error, Invalid, Refused, Rewound, Timeout

__all__ = ["Ended", "Error", "Invalid", "Refused", "Rewound", "Timeout"]
