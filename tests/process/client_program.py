"""A program of somebody else's: trains a linear model through libposeidon_client.so, by ctypes and the standard library.

    client_program.py LIBRARY JOB OPTIONS [--steps N] [--pace SECONDS] [--wait each|all] [--destroy-at STEP] [--rates ahead|clip|mixed]
                      [--fail-at STEP]

Prints what it sees, a JSON object a line. tests/process/client_test.py runs it.
"""

import argparse
import ctypes
import json
import random
import struct
import sys
import time

OK, REWOUND, ENDED, TIMEOUT = 0, 5, 4, 3
SAMPLES = 8  # of a worker, per step
CLIP = 2.0   # the largest norm, where the program clips


class Client:
    def __init__(self, library, job, options):
        self.library = ctypes.CDLL(library)
        self.library.poseidon_message.restype = ctypes.c_char_p
        self.library.poseidon_iteration.restype = ctypes.c_int64
        self.library.poseidon_step.argtypes = [ctypes.c_void_p, ctypes.c_double]
        self.pointer = ctypes.c_void_p()
        self.call("poseidon_create", job.encode(), options.encode(), ctypes.byref(self.pointer), client=False)

    def call(self, name, *arguments, client=True):
        """The result, which is OK or one that a program goes on with; others end it in words."""
        result = getattr(self.library, name)(*([self.pointer] if client else []), *arguments)
        if result not in (OK, REWOUND):
            raise RuntimeError(f"{name}: {result}: {self.library.poseidon_message().decode()}")
        return result

    def layer(self, index):
        parameters, gradients, elements = ctypes.POINTER(ctypes.c_float)(), ctypes.POINTER(ctypes.c_float)(), ctypes.c_int64()
        self.call("poseidon_layer", index, ctypes.byref(parameters), ctypes.byref(gradients), ctypes.byref(elements))
        floats = ctypes.c_float * elements.value
        return (ctypes.cast(parameters, ctypes.POINTER(floats)).contents,
                ctypes.cast(gradients, ctypes.POINTER(floats)).contents)

    def state(self):
        values, elements = ctypes.POINTER(ctypes.c_float)(), ctypes.c_int64()
        self.call("poseidon_state", ctypes.byref(values), ctypes.byref(elements))
        return ctypes.cast(values, ctypes.POINTER(ctypes.c_float * elements.value)).contents


def rate_at(step, base):
    return base / (1 + step)


def clips_at(step, rates):
    return rates == "clip" or rates == "mixed" and step % 3 == 0


class Rates(ctypes.Structure):
    _fields_ = [("learning_rate", ctypes.c_double), ("weight_decay", ctypes.c_double)]


def say(**what):
    print(json.dumps(what), flush=True)


def samples(step, rank, inputs):
    """The worker's share of the step: (x, y) with y = 1 x0 + 2 x1 + ... + 0.5."""
    source = random.Random(f"{step} {rank}")
    found = []
    for _ in range(SAMPLES):
        x = [source.uniform(-1, 1) for _ in range(inputs)]
        found.append((x, sum((i + 1) * value for i, value in enumerate(x)) + 0.5))
    return found


class Model:
    """y = weight x + bias, as two layers; the state counts the samples that were seen."""

    def __init__(self, client, rates, optimizer):
        self.client, self.rates, self.base_rate = client, rates, optimizer.get("learning_rate", 0.05)
        self.sums = optimizer.get("type") == "sum"  # the program steps
        (self.weight, self.weight_gradient), (self.bias, self.bias_gradient) = client.layer(0), client.layer(1)
        self.seen = client.state()

    def gradients(self, step, rank):
        batch = samples(step, rank, len(self.weight))
        weight, bias, loss = [0.0] * len(self.weight), 0.0, 0.0
        for x, y in batch:
            error = sum(w * v for w, v in zip(self.parameters(), x)) + self.parameters()[-1] - y
            loss += error * error / len(batch)
            bias += 2 * error / len(batch)
            weight = [g + 2 * error * v / len(batch) for g, v in zip(weight, x)]
        self.seen[0] += len(batch)
        return weight, bias, loss

    def step(self, rank, wait):
        """One iteration; the result of the first call that is not OK, or OK."""
        for call in [("poseidon_wait_all",)] if wait == "all" else [("poseidon_wait", 0), ("poseidon_wait", 1)]:
            if result := self.client.call(*call):
                return result
        iteration = self.client.library.poseidon_iteration(self.client.pointer)
        weight, bias, loss = self.gradients(iteration, rank)
        clips = clips_at(iteration, self.rates)
        if self.rates and not clips and (result := self.give_rates(iteration, 1.0)):
            return result
        self.bias_gradient[0] = bias
        if result := self.client.call("poseidon_gradient", 1):
            return result
        self.weight_gradient[:] = weight
        return (self.client.call("poseidon_gradient", 0) or (self.clip(iteration) if clips else OK)
                or self.client.call("poseidon_step", loss) or (self.step_here() if self.sums else OK))

    def step_here(self):
        """What the servers make of the parameters' memory is the mean gradient."""
        if result := self.client.call("poseidon_wait_all"):
            return result
        self.own = [p - self.base_rate * g for p, g in zip(self.own, [*self.weight, *self.bias])]
        return OK

    def parameters(self):
        return self.own if self.sums else [*self.weight, *self.bias]

    def joined(self):
        self.own = [*self.weight, *self.bias]

    def give_model(self):
        if self.sums:
            self.weight_gradient[:], self.bias_gradient[:] = self.own[:-1], self.own[-1:]

    def give_rates(self, iteration, scale):
        rate = rate_at(iteration, self.base_rate)
        rates = (Rates * 2)(Rates(rate, 0.0), Rates(2 * rate, 0.0))  # of the weight and of the bias
        return self.client.call("poseidon_rates", rates, ctypes.c_uint64(2), ctypes.c_double(scale))

    def clip(self, iteration):
        norm = ctypes.c_double()
        return (self.client.call("poseidon_gradient_norm", ctypes.byref(norm))
                or self.give_rates(iteration, min(1.0, CLIP / (norm.value + 1e-6))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("job")
    parser.add_argument("options")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--wait", default="each")
    parser.add_argument("--destroy-at", type=int, default=-1)
    parser.add_argument("--rates")
    parser.add_argument("--fail-at", type=int, default=-1)
    arguments = parser.parse_args()
    job = open(arguments.job).read()
    client = Client(arguments.library, job, arguments.options)
    model = Model(client, arguments.rates, json.loads(job)["optimizer"])
    model.weight[:] = [0.25 * (i + 1) for i in range(len(model.weight))]
    iteration = ctypes.c_int64()
    try:
        client.call("poseidon_join", ctypes.byref(iteration))
        model.joined()
        lib, pointer = client.library, client.pointer
        say(joined=iteration.value, rank=lib.poseidon_rank(pointer), workers=lib.poseidon_world_size(pointer),
            weight=list(model.weight), seen=model.seen[0])
        while True:
            step = lib.poseidon_iteration(pointer)
            if step == arguments.destroy_at:
                break
            if step == arguments.fail_at:
                client.call("poseidon_fail", b"ValueError: 7 is no colour")
                say(failed=step)
                break
            if step < arguments.steps:
                result = model.step(lib.poseidon_rank(pointer), arguments.wait)
            else:
                model.give_model()
                result = client.call("poseidon_finish")
                if result == OK:
                    say(finished=step, seen=model.seen[0],
                        parameters=struct.pack(f"<{len(model.weight) + 1}f", *model.parameters()).hex())
                    break
            if result == REWOUND:
                say(rewound=lib.poseidon_iteration(pointer), rank=lib.poseidon_rank(pointer),
                    workers=lib.poseidon_world_size(pointer), seen=model.seen[0])
            else:
                say(step=step)
            time.sleep(arguments.pace)
    except RuntimeError as error:
        say(error=str(error))
        client.library.poseidon_destroy(client.pointer)
        sys.exit(3)
    client.library.poseidon_destroy(client.pointer)


if __name__ == "__main__":
    main()
