"""The client library's C interface (poseidon/client.h) by ctypes. No framework is known here.

ctypes lets other Python threads run during a call. Called by: poseidon/torch/backend.py. Calls: libposeidon_client.so.
"""

import ctypes
import os
import pathlib

from poseidon.errors import Ended, Error, Invalid, Refused, Rewound, Timeout

NAME = "libposeidon_client.so"
ABI_VERSION = 2
ERRORS = {1: Invalid, 2: Refused, 3: Timeout, 4: Ended, 5: Rewound, 6: Error}

_client, _floats, _int64 = ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), ctypes.c_int64
_out = ctypes.POINTER
# Function: (result, arguments). An int is a poseidon_result where _check sees it.
FUNCTIONS = {
    "poseidon_abi_version": (ctypes.c_int, []),
    "poseidon_message": (ctypes.c_char_p, []),
    "poseidon_create": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, _out(_client)]),
    "poseidon_destroy": (None, [_client]),
    "poseidon_layer": (ctypes.c_int, [_client, ctypes.c_uint32, _out(_floats), _out(_floats), _out(_int64)]),
    "poseidon_state": (ctypes.c_int, [_client, _out(_floats), _out(_int64)]),
    "poseidon_join": (ctypes.c_int, [_client, _out(_int64)]),
    "poseidon_rank": (ctypes.c_int, [_client]),
    "poseidon_world_size": (ctypes.c_int, [_client]),
    "poseidon_iteration": (_int64, [_client]),
    "poseidon_gradient": (ctypes.c_int, [_client, ctypes.c_uint32]),
    "poseidon_gradient_norm": (ctypes.c_int, [_client, _out(ctypes.c_double)]),
    "poseidon_rates": (ctypes.c_int, [_client, _out(ctypes.c_double), ctypes.c_uint64, ctypes.c_double]),
    "poseidon_fail": (ctypes.c_int, [_client, ctypes.c_char_p]),
    "poseidon_step": (ctypes.c_int, [_client, ctypes.c_double]),
    "poseidon_wait": (ctypes.c_int, [_client, ctypes.c_uint32]),
    "poseidon_wait_all": (ctypes.c_int, [_client]),
    "poseidon_finish": (ctypes.c_int, [_client]),
}


def candidates(environment=os.environ):
    """Where the library may be, first choice first."""
    named = environment.get("POSEIDON_CLIENT_LIBRARY")
    if named:
        return [pathlib.Path(named)]
    here = pathlib.Path(__file__).resolve().parent
    builds = [here.parents[1] / "build" / preset for preset in ("release", "debug")]
    return [here / NAME] + [build / folder / NAME for build in builds for folder in ("lib", "bin", "client")]


def load(environment=os.environ):
    """The library, its functions declared. Raises Error with what to do where it is missing or another version."""
    places = candidates(environment)
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise Error(f"{NAME} is not at {', '.join(str(place) for place in places)}: build it (the README says how), or set "
                    "POSEIDON_CLIENT_LIBRARY to its path")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Error(f"{path} cannot be loaded: {error}") from error
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise Error(f"{path} has no function {name}: it is of another version than this package") from None
        function.argtypes, function.restype = arguments, result
    version = library.poseidon_abi_version()
    if version != ABI_VERSION:
        raise Error(f"{path} has interface version {version}; this package needs {ABI_VERSION}: install both from one version")
    return library


class Client:
    """One poseidon_client. Used by the thread that trains; not after close()."""

    def __init__(self, job, options, library=None):
        """job, options: JSON texts."""
        self._library = library or load()
        self._client = _client()
        self._check(self._library.poseidon_create(job.encode(), options.encode(), ctypes.byref(self._client)))

    def _check(self, result):
        if result != 0:
            raise ERRORS.get(result, Error)(self._library.poseidon_message().decode(errors="replace"))

    def layer(self, layer):
        """(parameters, gradients): ctypes arrays of float in the library's memory, valid until close()."""
        parameters, gradients, elements = _floats(), _floats(), _int64()
        self._check(self._library.poseidon_layer(self._client, layer, ctypes.byref(parameters), ctypes.byref(gradients),
                                                 ctypes.byref(elements)))
        return _array(parameters, elements.value), _array(gradients, elements.value)

    def state(self):
        """A ctypes array like those of layer(); None where no state is declared."""
        values, elements = _floats(), _int64()
        self._check(self._library.poseidon_state(self._client, ctypes.byref(values), ctypes.byref(elements)))
        return _array(values, elements.value) if values else None

    def join(self):
        """The number of steps that the parameters have seen."""
        iteration = _int64()
        self._check(self._library.poseidon_join(self._client, ctypes.byref(iteration)))
        return iteration.value

    def rank(self):
        return self._library.poseidon_rank(self._client)

    def world_size(self):
        return self._library.poseidon_world_size(self._client)

    def iteration(self):
        return self._library.poseidon_iteration(self._client)

    def gradient(self, layer):
        self._check(self._library.poseidon_gradient(self._client, layer))

    def gradient_norm(self):
        norm = ctypes.c_double()
        self._check(self._library.poseidon_gradient_norm(self._client, ctypes.byref(norm)))
        return norm.value

    def rates(self, rates, gradient_scale):
        """rates: (learning rate, weight decay) of each declared tensor, as poseidon_rate lies in memory."""
        values = (ctypes.c_double * (2 * len(rates)))(*(value for pair in rates for value in pair))
        self._check(self._library.poseidon_rates(self._client, values, len(rates), gradient_scale))

    def step(self, loss):
        self._check(self._library.poseidon_step(self._client, loss))

    def wait(self, layer):
        self._check(self._library.poseidon_wait(self._client, layer))

    def wait_all(self):
        self._check(self._library.poseidon_wait_all(self._client))

    def finish(self):
        self._check(self._library.poseidon_finish(self._client))

    def fail(self, reason):
        """The job fails with this reason on all workers."""
        self._check(self._library.poseidon_fail(self._client, reason.encode(errors="replace")))

    def close(self):
        """Leaves the job. The memory of layer() and state() is gone afterwards."""
        client, self._client = self._client, _client()
        if client:
            self._library.poseidon_destroy(client)


def _array(pointer, elements):
    return ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float * elements)).contents
