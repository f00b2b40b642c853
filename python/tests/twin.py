"""A cluster in memory: workers are threads of this process, and servers are what the last of them computes.

It passes through the calls of poseidon/torch/backend.py and is as unkind as the contract allows:
  - between gradient(layer) and wait(layer) the worker's parameters of the layer are NaN: who reads them sees it;
  - a gradient that changes while it is sent is an error, and so is one that is reported while a layer is landing;
  - every wait has a deadline.
Gradients are summed in the order of ranks. Called by: the tests here.
"""

import functools
import math
import threading

import torch

from poseidon import Ended, Invalid, Timeout
from poseidon.torch.backend import Backend
from poseidon.torch.distribute import current

DEADLINE_S = 60
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
OPTIONS = {"sgd": ("momentum", "nesterov"), "adam": ("beta1", "beta2", "epsilon"), "adamw": ("beta1", "beta2", "epsilon")}


class Cluster:
    """What the workers of one job share."""

    def __init__(self, workers):
        self.workers = workers
        self.changed = threading.Condition()
        self.job = None
        self.failure = None      # the first worker's exception: all waits end
        self.sent = {}           # (iteration, layer): {rank: gradient}
        self.rates = {}          # iteration: {rank: rates}
        self.layers = []         # of Layer: the servers' parameters, or sums
        self.initial = {}        # rank: (parameters of each layer, state)
        self.state = None
        self.finished = set()
        self.losses = {}         # (iteration, rank): loss

    def fail(self, error):
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def wait_until(self, ready, what):
        """Holds `changed`."""
        if not self.changed.wait_for(lambda: ready() or self.failure is not None, DEADLINE_S):
            raise Timeout(f"{what}: nobody answered for {DEADLINE_S} s")
        if not ready():
            raise Ended(f"another worker failed: {self.failure}")

    def step_layer(self, layer, iteration):
        """Makes the step of a layer when all is there. Holds `changed`."""
        server = self.layers[layer]
        sums = self.job["optimizer"]["type"] == "sum"
        if server.steps != iteration or len(self.sent.get((iteration, layer), ())) < self.workers:
            return
        if not sums and 0 not in self.rates.get(iteration, {}):
            return
        gradient = self.mean(iteration, layer)
        if not sums:
            rates, scale = self.rates[iteration][0]
            first = sum(len(other.parameters) for other in self.layers[:layer])
            gradient = server.step(gradient * scale, rates[first:first + len(server.parameters)])
        server.values = gradient
        server.steps += 1
        self.changed.notify_all()

    def all_sent(self, iteration):
        return all(len(self.sent.get((iteration, i), ())) == self.workers for i in range(len(self.layers)))

    def norm(self, iteration):
        return math.sqrt(sum(self.mean(iteration, i).double().square().sum().item() for i in range(len(self.layers))))

    def mean(self, iteration, layer):
        sent = self.sent[iteration, layer]
        total = sent[0].clone()
        for rank in range(1, self.workers):
            total += sent[rank]
        return total / self.workers


class Layer:
    """The servers' part of one layer: torch's own optimizer on each tensor."""

    def __init__(self, values, tensors, optimizer):
        self.steps, self.values = 0, values
        self.parameters, self.optimizers = [], []
        begin = 0
        for _, elements in tensors:
            parameter = torch.nn.Parameter(values[begin:begin + elements].clone())
            begin += elements
            if optimizer["type"] == "sum":
                continue
            options = {key: optimizer[key] for key in OPTIONS[optimizer["type"]] if key in optimizer}
            if "beta1" in options:
                options = {"betas": (options["beta1"], options["beta2"]), "eps": options["epsilon"]}
            self.parameters.append(parameter)
            self.optimizers.append(OPTIMIZERS[optimizer["type"]]([parameter], foreach=False, **options))

    def step(self, gradient, rates):
        begin = 0
        for parameter, optimizer, (rate, decay) in zip(self.parameters, self.optimizers, rates):
            group = optimizer.param_groups[0]
            group["lr"], group["weight_decay"] = rate, decay
            parameter.grad = gradient[begin:begin + parameter.numel()].clone()
            begin += parameter.numel()
            optimizer.step()
        return torch.cat([parameter.detach() for parameter in self.parameters])


class TwinBackend(Backend):
    def __init__(self, cluster, rank, job, options):
        self.cluster, self._rank, self.job = cluster, rank, job
        self._steps = 0
        self.tensors = [[(f"{layer['name']}.{tensor['name']}" if "name" in tensor else layer["name"], math.prod(tensor["shape"]))
                         for tensor in layer["tensors"]] for layer in job["model"]["declared"]]
        elements = [sum(count for _, count in tensors) for tensors in self.tensors]
        self.memory = [(torch.zeros(count), torch.zeros(count)) for count in elements]
        self.sent = [None] * len(elements)
        self.landing = set()  # layers that have not been waited for since the last step
        state = job["model"].get("state", [])
        self._state = torch.zeros(sum(math.prod(entry["shape"]) for entry in state)) if state else None

    def layer(self, layer):
        return self.memory[layer]

    def state(self):
        return self._state

    def join(self):
        cluster = self.cluster
        with cluster.changed:
            if cluster.job is not None and cluster.job != self.job:
                raise Invalid("this worker declares another job than the first one did")
            cluster.job = self.job
            state = None if self._state is None else self._state.clone()
            cluster.initial[self._rank] = ([parameters.clone() for parameters, _ in self.memory], state)
            if len(cluster.initial) == cluster.workers:
                values, cluster.state = cluster.initial[0]
                cluster.layers = [Layer(*pair, self.job["optimizer"]) for pair in zip(values, self.tensors)]
                cluster.changed.notify_all()
            cluster.wait_until(lambda: cluster.layers, "join")
            for (parameters, _), server in zip(self.memory, cluster.layers):
                parameters.copy_(server.values)
            if self._state is not None:
                self._state.copy_(cluster.state)

    def rank(self):
        return self._rank

    def world_size(self):
        return self.cluster.workers

    def iteration(self):
        return self._steps

    def gradient(self, layer):
        if self.sent[layer] is not None:
            raise Invalid(f"layer {layer} was reported twice")
        if self.landing:
            raise Invalid(f"layer {layer} was reported while layers {self.landing} had not been waited for")
        parameters, gradients = self.memory[layer]
        self.sent[layer] = gradients.clone()
        parameters.fill_(float("nan"))
        with self.cluster.changed:
            self.cluster.sent.setdefault((self._steps, layer), {})[self._rank] = self.sent[layer]
            self.cluster.changed.notify_all()

    def gradient_norm(self):
        with self.cluster.changed:
            self.cluster.wait_until(lambda: self.cluster.all_sent(self._steps), "the norm")
            return self.cluster.norm(self._steps)

    def rates(self, rates, gradient_scale):
        with self.cluster.changed:
            self.cluster.rates.setdefault(self._steps, {})[self._rank] = (rates, gradient_scale)
            self.cluster.changed.notify_all()

    def step(self, loss):
        missing = [i for i, sent in enumerate(self.sent) if sent is None]
        if missing:
            raise Invalid(f"layers {missing} were not reported")
        with self.cluster.changed:
            self.cluster.losses[self._steps, self._rank] = loss
            if self._rank == 0 and self._state is not None:
                self.cluster.state = self._state.clone()
            self.cluster.changed.notify_all()
        self._steps += 1
        self.landing = set(range(len(self.sent)))

    def wait(self, layer):
        cluster, (parameters, gradients) = self.cluster, self.memory[layer]
        if self.sent[layer] is None:
            return
        if not torch.equal(gradients, self.sent[layer]) and not gradients.isnan().any():
            raise Invalid(f"the gradient of layer {layer} changed while it was sent")

        def landed():
            cluster.step_layer(layer, self._steps - 1)
            return cluster.layers[layer].steps >= self._steps

        with cluster.changed:
            cluster.wait_until(landed, f"parameters of layer {layer}")
            parameters.copy_(cluster.layers[layer].values)
        self.sent[layer] = None
        self.landing.discard(layer)

    def fail(self, reason):
        self.cluster.fail(Ended(reason))

    def finish(self):
        for layer in range(len(self.memory)):
            self.wait(layer)
        with self.cluster.changed:
            self.cluster.finished.add(self._rank)
            self.cluster.changed.notify_all()
            self.cluster.wait_until(lambda: len(self.cluster.finished) == self.cluster.workers, "finish")

    def close(self):
        pass


def run(workers, script, kind=TwinBackend):
    """script(make_backend, rank) on a thread per worker; make_backend is what distribute() takes. Returns (results, cluster)."""
    cluster, results, errors = Cluster(workers), [None] * workers, []

    def work(rank):
        try:
            make_backend = functools.partial(kind, cluster, rank)
            results[rank] = script(make_backend, rank)
        except BaseException as error:
            errors.append(error)
            cluster.fail(error)
            current().close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results, cluster
