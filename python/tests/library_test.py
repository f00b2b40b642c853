"""The client library by ctypes (poseidon/_library.py, LibraryBackend), on a library of Python functions with the C interface."""

import contextlib
import ctypes
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import support
from support import torch

from poseidon import _library
from poseidon.errors import Ended, Error, Invalid, Refused, Rewound, Timeout

if torch:
    from torch import nn

    import poseidon.torch as poseidon
    from poseidon.torch import backend, ending
    from poseidon.torch.distribute import current


class FakeLibrary:
    """The functions of poseidon/client.h for a cluster of one with plain SGD; `fail` is what a function returns instead."""

    def __init__(self):
        self.calls, self.fail, self.message = [], {}, b""
        self.jobs, self.layers, self.state, self.steps = [], [], None, 0

    def __getattr__(self, name):
        if not name.startswith("poseidon_"):
            raise AttributeError(name)

        def function(*arguments):
            self.calls.append(name)
            if name in self.fail:
                result, self.message = self.fail[name]
                return result
            return getattr(self, name.removeprefix("poseidon_") + "_")(*arguments) or 0
        return function

    def message_(self):
        return self.message

    def create_(self, job, options, client):
        job = json.loads(job)
        self.jobs.append((job, json.loads(options)))
        for layer in job["model"]["declared"]:
            count = sum(_product(tensor["shape"]) for tensor in layer["tensors"])
            self.layers.append(((ctypes.c_float * count)(), (ctypes.c_float * count)()))
        count = sum(_product(tensor["shape"]) for tensor in job["model"].get("state", []))
        self.state = (ctypes.c_float * count)() if count else None
        client._obj.value = 1

    def layer_(self, client, layer, parameters, gradients, elements):
        for pointer, memory in zip((parameters, gradients), self.layers[layer]):
            pointer._obj.contents = ctypes.c_float.from_buffer(memory)
        elements._obj.value = len(memory)

    def state_(self, client, values, elements):
        if self.state is not None:
            values._obj.contents = ctypes.c_float.from_buffer(self.state)
            elements._obj.value = len(self.state)

    def join_(self, client, iteration):
        iteration._obj.value = 0

    def rank_(self, client):
        return 0

    def world_size_(self, client):
        return 1

    def iteration_(self, client):
        return self.steps

    def gradient_(self, client, layer):
        pass

    def gradient_norm_(self, client, norm):
        norm._obj.value = math.sqrt(sum(value * value for _, gradients in self.layers for value in gradients))

    def rates_(self, client, rates, count, gradient_scale):
        self.rates = [rates[i] for i in range(2 * count)]
        self.scale = gradient_scale

    def step_(self, client, loss):
        rates = iter(self.rates[::2])
        for (parameters, gradients), layer in zip(self.layers, self.jobs[0][0]["model"]["declared"]):
            begin = 0
            for tensor in layer["tensors"]:
                rate, end = next(rates), begin + _product(tensor["shape"])
                parameters[begin:end] = [p - rate * self.scale * g for p, g in zip(parameters[begin:end], gradients[begin:end])]
                begin = end
        self.steps += 1

    def fail_(self, client, reason):
        self.reason = reason.decode()

    def wait_(self, *_):
        pass

    wait_all_ = finish_ = destroy_ = wait_


def _product(shape):
    count = 1
    for size in shape:
        count *= size
    return count


@contextlib.contextmanager
def cluster(library, **environment):
    with mock.patch.object(_library, "load", lambda: library), mock.patch.dict(os.environ, {"POSEIDON_COORDINATOR": "here:1"} | environment):
        yield


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def train(model, optimizer, iterations=3):
    for _ in range(iterations):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()


class LoadTest(unittest.TestCase):
    def test_places(self):
        self.assertEqual(_library.candidates({"POSEIDON_CLIENT_LIBRARY": "/x/y.so"}), [pathlib.Path("/x/y.so")])
        first = _library.candidates({})[0]
        self.assertEqual((first.parent.name, first.name), ("poseidon", "libposeidon_client.so"))

    def test_missing(self):
        with self.assertRaisesRegex(Error, "is not at /nowhere/x.so: build it .* or set POSEIDON_CLIENT_LIBRARY"):
            _library.load({"POSEIDON_CLIENT_LIBRARY": "/nowhere/x.so"})

    def test_no_library(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            with self.assertRaisesRegex(Error, "cannot be loaded"):
                _library.load({"POSEIDON_CLIENT_LIBRARY": file.name})

    def test_another_library(self):
        import _ctypes
        if not _ctypes.__file__.endswith(".so"):
            self.skipTest("no shared library to try")
        with self.assertRaisesRegex(Error, "has no function poseidon_abi_version: it is of another version"):
            _library.load({"POSEIDON_CLIENT_LIBRARY": _ctypes.__file__})

    def test_every_function_of_the_header_is_declared(self):
        header = pathlib.Path(__file__).resolve().parents[2] / "client/poseidon/client.h"
        if not header.exists():
            self.skipTest("poseidon/client.h is not in this tree")
        self.assertLessEqual(set(_library.FUNCTIONS), set(re.findall(r"\b(poseidon_\w+)\(", header.read_text())))


@unittest.skipUnless(torch, "torch is not installed")
class LibraryBackendTest(unittest.TestCase):
    def test_trains_in_the_memory_of_the_library(self):
        library = FakeLibrary()
        with cluster(library, RANK="0", WORLD_SIZE="1", POSEIDON_SERVERS="2", POSEIDON_JOB="digits"):
            model = network()
            model, optimizer = poseidon.distribute(model, torch.optim.SGD(model.parameters(), lr=0.5), wire_dtype="bf16",
                                                   job={"checkpoint": {"every_iterations": 10}})
            train(model, optimizer)
            poseidon.wait()
            memory = torch.frombuffer(library.layers[0][0], dtype=torch.float32)
            self.assertEqual(model[0].weight.data_ptr(), memory.data_ptr())
            self.assertEqual(torch.frombuffer(library.state, dtype=torch.float32)[:2].tolist(), model[1].running_mean.tolist())
            poseidon.finish()
        (job, options), = library.jobs
        self.assertEqual(options, {"coordinator": "here:1", "rank": 0, "workers": 1, "servers": 2, "wait_timeout_s": 1})
        self.assertEqual((job["name"], job["sync"], job["checkpoint"]),
                         ("digits", {"scheme": "auto", "wire_dtype": "bf16"}, {"every_iterations": 10}))
        self.assertEqual(library.steps, 3)
        self.assertEqual(library.calls.count("poseidon_gradient"), 6)
        self.assertEqual(library.calls[-2:], ["poseidon_finish", "poseidon_destroy"])

        reference = network()
        train(reference, torch.optim.SGD(reference.parameters(), lr=0.5))
        for name, value in reference.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value)

    def test_results_are_exceptions(self):
        kinds = {1: Invalid, 2: Refused, 3: Timeout, 4: Ended, 5: Rewound, 6: Error}
        for result, kind in kinds.items():
            library = FakeLibrary()
            library.fail["poseidon_join"] = (result, "worker 1 said no".encode())
            with cluster(library), self.assertRaisesRegex(kind, "worker 1 said no"):
                model = network()
                poseidon.distribute(model, torch.optim.SGD(model.parameters(), lr=0.5))
            self.assertEqual(library.calls[-1], "poseidon_destroy")

    def test_waits_are_in_parts(self):
        library = FakeLibrary()
        with cluster(library):
            model = network()
            model, optimizer = poseidon.distribute(model, torch.optim.SGD(model.parameters(), lr=0.5), options={"wait_timeout_s": 0.01})
            train(model, optimizer, 1)
            library.fail["poseidon_wait"] = (3, b"server 1 does not answer")
            with self.assertRaisesRegex(Timeout, "server 1 does not answer"):
                poseidon.wait()
            self.assertGreater(library.calls.count("poseidon_wait"), 1)
            current().close()

    def test_a_replacement_without_the_parameters_of_its_job_ends_it(self):
        library = FakeLibrary()
        library.steps = 7
        with cluster(library):
            model = network()
            with self.assertRaisesRegex(Refused, "has made 7 steps"):
                poseidon.distribute(model, torch.optim.RMSprop(model.parameters()))
            self.assertIn("start the whole job again", library.reason)
            self.assertEqual(library.calls[-1], "poseidon_destroy")

    def test_the_model_is_in_the_gradients_memory_where_workers_step(self):
        library = FakeLibrary()
        with cluster(library):
            model = network()
            model, optimizer = poseidon.distribute(model, torch.optim.RMSprop(model.parameters()))
            expected = [parameter.tolist() for parameter in model[0].parameters()]
            poseidon.finish()
            gradients = list(library.layers[0][1])
            self.assertEqual(gradients, [value for row in expected[0] for value in row] + expected[1])

    def test_each_step_has_the_rates_of_its_tensors(self):
        library = FakeLibrary()
        with cluster(library):
            model = network()
            groups = [{"params": model[0].parameters(), "weight_decay": 0.125}, {"params": model[1].parameters(), "lr": 0.25}]
            model, optimizer = poseidon.distribute(model, torch.optim.SGD(groups, lr=0.5))
            train(model, optimizer, 1)
            self.assertEqual(library.rates, [0.5, 0.125, 0.5, 0.125, 0.25, 0.0, 0.25, 0.0])
            self.assertGreater(library.calls.index("poseidon_rates"), library.calls.index("poseidon_gradient"), "it might have clipped")
            library.calls.clear()
            optimizer.param_groups[1]["lr"] = 0.125
            train(model, optimizer, 1)
            self.assertEqual(library.rates[4:], [0.125, 0.0, 0.125, 0.0])
            self.assertLess(library.calls.index("poseidon_rates"), library.calls.index("poseidon_gradient"))
            current().close()

    def test_how_a_script_ends_is_known(self):
        end = ending.End()
        with mock.patch.object(sys, "excepthook", lambda *_: None), mock.patch.object(sys, "exit", sys.exit):
            end.watch()
            self.assertIsNone(end.failure)
            sys.excepthook(ValueError, ValueError("7 is no colour"), None)
            self.assertEqual((end.failure, end.interrupted), ("ValueError: 7 is no colour", False))
            sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
            self.assertTrue(end.interrupted)
            for status, failure in ((1, "sys.exit(1)"), ("no data", "sys.exit('no data')"), (0, None), (None, None)):
                with self.assertRaises(SystemExit):
                    sys.exit(status)
                self.assertEqual(end.failure, failure)

    def test_a_script_that_fails_ends_the_others_or_leaves(self):
        for on_error, failure, interrupted, expected in (("end", "ValueError: 7", False, "poseidon_fail"),
                                                         ("end", None, False, "poseidon_finish"),
                                                         ("end", "KeyboardInterrupt", True, "poseidon_destroy"),
                                                         ("leave", "ValueError: 7", False, "poseidon_destroy")):
            library = FakeLibrary()
            with cluster(library), mock.patch.multiple(ending.of_script, failure=failure, interrupted=interrupted):
                model = network()
                poseidon.distribute(model, torch.optim.SGD(model.parameters(), lr=0.5))
                library.calls.clear()
                ending.at_exit(current(), on_error)
            ends = [call for call in library.calls if call in ("poseidon_fail", "poseidon_finish", "poseidon_destroy")]
            self.assertEqual(ends[0], expected)
            self.assertEqual(ends[-1], "poseidon_destroy")
        library.fail["poseidon_fail"] = (3, b"the coordinator does not answer")
        with cluster(library), mock.patch.multiple(ending.of_script, failure="ValueError: 7"):
            model = network()
            poseidon.distribute(model, torch.optim.SGD(model.parameters(), lr=0.5))
            with self.assertWarnsRegex(UserWarning, "the coordinator does not answer"):
                ending.at_exit(current(), "end")

    def test_environment(self):
        self.assertIsNone(backend.options_from({}))
        self.assertIsNone(backend.options_from({"RANK": "0", "WORLD_SIZE": "1"}))
        self.assertEqual(backend.options_from({"POSEIDON_COORDINATOR": "a:1"}), {"coordinator": "a:1", "rank": -1})
        with self.assertRaisesRegex(Invalid, "WORLD_SIZE is 4, .* POSEIDON_COORDINATOR is not set"):
            backend.options_from({"WORLD_SIZE": "4"})
        with self.assertRaisesRegex(Invalid, "RANK is 'first'"):
            backend.options_from({"POSEIDON_COORDINATOR": "a:1", "RANK": "first"})


@unittest.skipUnless(torch, "torch is not installed")
class AloneTest(unittest.TestCase):
    def test_nothing_is_changed(self):
        model = network()
        optimizer = torch.optim.Adam(model.parameters())
        before = (type(optimizer), dict(optimizer.__dict__), [dict(module.__dict__) for module in model.modules()])
        self.assertEqual(poseidon.distribute(model, optimizer), (model, optimizer))
        self.assertEqual(before, (type(optimizer), optimizer.__dict__, [module.__dict__ for module in model.modules()]))
        with poseidon.no_sync(model):
            train(model, optimizer, 1)
        self.assertFalse(poseidon.clip_grad_norm_(model.parameters(), 1.0).isnan())
        poseidon.report(1.0)
        poseidon.register_state("anything", object())
        poseidon.wait(model)
        poseidon.finish()

    def script(self, text, **environment):
        path = str(pathlib.Path(__file__).resolve().parents[1])
        return subprocess.run([sys.executable, "-B", "-c", text], env=os.environ | {"PYTHONPATH": path} | environment, capture_output=True,
                              text=True, timeout=120)

    def test_torch_missing_or_old(self):
        missing = self.script("import sys; sys.modules['torch'] = None; import poseidon.torch")
        self.assertIn("ImportError: poseidon.torch needs PyTorch 2.4 or newer, and there is none here: pip install torch", missing.stderr)
        old = self.script("import sys, types; t = types.ModuleType('torch'); t.__version__ = '2.3.1+cpu'; sys.modules['torch'] = t; import poseidon.torch")
        self.assertIn("ImportError: poseidon.torch needs PyTorch 2.4 or newer; this is 2.3.1+cpu", old.stderr)

    def test_end_of_a_script(self):
        text = """
import sys; sys.path.insert(0, %r)
import torch, twin, functools, poseidon.torch as poseidon
class Backend(twin.TwinBackend):
    def finish(self): super().finish(); print("finished")
    def close(self): print("closed")
make = functools.partial(Backend, twin.Cluster(1), 0)
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
model, optimizer = poseidon.distribute(model, torch.optim.SGD(model.parameters(), lr=1), backend=make)
model(torch.ones(1, 2)).sum().backward(); optimizer.step()
""" % str(pathlib.Path(__file__).resolve().parent)
        self.assertEqual(self.script(text).stdout.split(), ["finished", "closed"])
        failed = self.script(text + "raise RuntimeError('no more')")
        self.assertEqual((failed.stdout.split(), failed.returncode), (["closed"], 1))
        forked = self.script(text + """
import os
if os.fork() == 0:
    try: optimizer.step()
    except poseidon.Invalid as error: print("child:", error)
else: os.wait()
""")
        self.assertRegex(forked.stdout, "^child: this process was forked .*\nfinished\nclosed\n$")


if __name__ == "__main__":
    support.main()
