"""What scripts do besides the plain loop, and what is refused in words (poseidon/torch/session.py, hooks.py, modes.py)."""

import copy
import json
import math
import os
import pathlib
import struct
import tempfile
import unittest
import warnings

import support
from support import torch

if torch:
    from torch import nn

    import poseidon.torch as poseidon
    import twin
    from poseidon import Error, Invalid, Rewound
    from poseidon.torch.distribute import current


def network(seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def data(i, rank=0):
    random = torch.Generator().manual_seed(100 * i + rank)
    return torch.randn(5, 4, generator=random), torch.randn(5, 2, generator=random)


def loss_of(model, i, rank=0):
    x, y = data(i, rank)
    return (model(x) - y).square().mean()


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.5} | options)


def train(model, optimizer, iterations, rank=0):
    for i in range(iterations):
        optimizer.zero_grad()
        loss_of(model, i, rank).backward()
        optimizer.step()


def alone(script, **options):
    """script(make_backend) in a cluster of one."""
    return twin.run(1, lambda make_backend, rank: script(make_backend), **options)[0][0]


@unittest.skipUnless(torch, "torch is not installed")
class SessionTest(unittest.TestCase):
    def assert_close(self, state, reference):
        for name, value in reference.items():
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-7)

    def refused(self, word, script, model=None, optimizer=None, **options):
        def work(make_backend):
            here = model or network()
            script(*poseidon.distribute(here, optimizer(here) if optimizer else sgd(here), backend=make_backend, **options))
        with self.assertRaisesRegex(Invalid, word):
            alone(work)

    # Gradients.

    def test_unused_parameters_count_as_zeros(self):
        def use(model, i):
            x, y = data(i)
            return (model[2](torch.tanh(model[0](x))) if i % 2 == 0 else model[2](torch.cat((x, y), 1)) - y).square().mean()

        def script(make_backend):
            model = network()
            model, optimizer = poseidon.distribute(model, sgd(model), backend=make_backend)
            for i in range(6):
                use(model, i).backward()
                optimizer.step()
            state = copy.deepcopy(model.state_dict())
            poseidon.finish()
            return state

        reference = network()
        optimizer = sgd(reference)
        for i in range(6):
            optimizer.zero_grad()
            use(reference, i).backward()
            for p in reference.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            optimizer.step()
        self.assert_close(alone(script), reference.state_dict())

    def test_second_backward_without_no_sync(self):
        def script(model, optimizer):
            loss_of(model, 0).backward()
            loss_of(model, 1).backward()
        self.refused("put every backward pass but the last", script)

    def test_gradients_removed_before_step(self):
        def by_optimizer(model, optimizer):
            loss_of(model, 0).backward()
            optimizer.zero_grad()
        self.refused("between backward\\(\\) and step\\(\\)", by_optimizer)

        def by_model(model, optimizer):
            loss_of(model, 0).backward()
            model.zero_grad()
            optimizer.step()
        self.refused("was removed after it was sent", by_model)

    def test_gradients_of_another_loss_are_dropped_under_no_sync(self):
        def script(make_backend):
            model = network()
            model, optimizer = poseidon.distribute(model, sgd(model), backend=make_backend)
            for i in range(3):
                with poseidon.no_sync(model):
                    loss_of(model, i + 50).backward()
                optimizer.zero_grad()
                loss_of(model, i).backward()
                optimizer.step()
            state = copy.deepcopy(model.state_dict())
            poseidon.finish()
            return state

        reference = network()
        train(reference, sgd(reference), 3)
        self.assert_close(alone(script), reference.state_dict())

    def test_parameters_of_16_bits_have_float32_masters(self):
        for step in ("server", "layer", "worker"):
            for dtype in (torch.bfloat16, torch.float16):
                def script(make_backend, rank):
                    model = models[rank].to(dtype)
                    model, optimizer = poseidon.distribute(model, sgd(model), step=step, backend=make_backend)
                    for i in range(5):
                        optimizer.zero_grad()
                        x, y = data(i, rank)
                        (model(x.to(dtype)) - y.to(dtype)).square().mean().backward()
                        optimizer.step()
                    state = copy.deepcopy(model.state_dict())
                    poseidon.finish()
                    return state

                models = [network(), network()]
                first, second = twin.run(2, script)[0]
                reference = network()
                optimizer = sgd(reference)
                for i in range(5):
                    optimizer.zero_grad()
                    (sum(loss_of(reference, i, rank) for rank in range(2)) / 2).backward()
                    optimizer.step()
                for name, value in reference.state_dict().items():
                    self.assertTrue(torch.equal(first[name], second[name]))
                    self.assertEqual(first[name].dtype, dtype)
                    torch.testing.assert_close(first[name].float(), value, rtol=0.05, atol=0.02)

    def test_gradient_checkpointing_and_second_derivatives(self):
        def use(model, i, checkpointed):
            x, y = data(i)
            x.requires_grad_()
            out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)
            return (out - y).square().mean()

        def script(make_backend):
            model = network()
            model, optimizer = poseidon.distribute(model, sgd(model), backend=make_backend)
            for i in range(4):
                use(model, i, True).backward()
                optimizer.step()
            state = copy.deepcopy(model.state_dict())
            poseidon.finish()
            return state

        reference = network()
        optimizer = sgd(reference)
        for i in range(4):
            optimizer.zero_grad()
            use(reference, i, False).backward()
            optimizer.step()
        self.assert_close(alone(script), reference.state_dict())

    # The layers of a job do not change.

    def test_late_parameters(self):
        self.refused("add_param_group\\(\\) after distribute", lambda model, optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}))

        def unfreeze(model, optimizer):
            model[0].bias.requires_grad_(True)
            train(model, optimizer, 1)
        model = network()
        model[0].bias.requires_grad_(False)
        self.refused("was frozen at distribute", unfreeze, model)

        def freeze(model, optimizer):
            model[0].bias.requires_grad_(False)
            train(model, optimizer, 1)
        self.refused("0.bias was frozen after distribute", freeze)

        def move(model, optimizer):
            model.double().float()
            train(model, optimizer, 1)
        self.refused("has been moved or replaced", move)

    def test_what_distribute_refuses(self):
        nothing = lambda model, optimizer: None
        self.refused("in parameter group 0 of the optimizer is not in the model", nothing,
                     optimizer=lambda model: torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(3))], lr=1))
        self.refused("no parameter that requires a gradient", nothing, network().requires_grad_(False))
        self.refused("step is 'all'", nothing, step="all")
        self.refused("the servers have torch.optim.SGD", nothing, step="server", optimizer=lambda model: torch.optim.RMSprop(model.parameters()))
        self.refused("looks at all parameters at once", nothing, step="layer", optimizer=lambda model: torch.optim.LBFGS(model.parameters()))

        def again(model, optimizer):
            poseidon.distribute(network(), optimizer, backend=lambda *_: None)
        self.refused("called already", again)

    def test_different_scripts(self):
        def script(make_backend, rank):
            model = nn.Sequential(nn.Linear(4, 6 + rank))
            poseidon.distribute(model, sgd(model), backend=make_backend)
        with self.assertRaisesRegex(Error, "declares another job|another worker failed"):
            twin.run(2, script)

    def test_frozen_parameters_are_left_alone(self):
        def script(make_backend):
            model = network()
            model[0].requires_grad_(False)
            before = model[0].weight.clone()
            model, optimizer = poseidon.distribute(model, sgd(model), backend=make_backend)
            train(model, optimizer, 2)
            poseidon.finish()
            return torch.equal(model[0].weight, before)
        self.assertTrue(alone(script))

    # Optimizers.

    def test_any_optimizer_steps_layer_by_layer(self):
        kinds = [torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adadelta,
                 torch.optim.ASGD, torch.optim.Rprop]
        for kind in kinds:
            def script(make_backend):
                model = network()
                model, optimizer = poseidon.distribute(model, kind(model.parameters(), lr=0.01), backend=make_backend)
                self.assertTrue(hasattr(current().mode, "single"), "the default is step=\"layer\"")
                train(model, optimizer, 4)
                state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
                poseidon.finish()
                return state

            reference = network()
            optimizer = kind(reference.parameters(), lr=0.01)
            train(reference, optimizer, 4)
            state, remembered = alone(script)
            self.assertTrue(all(torch.equal(state[name], value) for name, value in reference.state_dict().items()), kind.__name__)
            self.assertEqual(str(remembered), str(optimizer.state_dict()), kind.__name__)

    def test_lbfgs_with_closures(self):
        def fit(model, optimizer, losses_of):
            for _ in range(3):
                def closure():
                    optimizer.zero_grad()
                    loss = losses_of(model)
                    loss.backward()
                    return loss
                optimizer.step(closure)

        def script(make_backend, rank):
            model, optimizer = poseidon.distribute(models[rank], lbfgs(models[rank]), backend=make_backend)
            fit(model, optimizer, lambda model: loss_of(model, 0, rank))
            state = copy.deepcopy(model.state_dict())
            poseidon.finish()
            return state

        def lbfgs(model):
            return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")

        models = [network(), network(5)]
        first, second = twin.run(2, script)[0]
        reference = network()
        fit(reference, lbfgs(reference), lambda model: (loss_of(model, 0, 0) + loss_of(model, 0, 1)) / 2)
        for name, value in reference.state_dict().items():
            self.assertTrue(torch.equal(first[name], second[name]))
            torch.testing.assert_close(first[name], value, rtol=1e-3, atol=1e-4)

    def test_optimizer_state_loads_in_layer_mode(self):
        def script(make_backend):
            model = network()
            kept = torch.optim.Adam(model.parameters(), lr=0.01)
            train(model, kept, 2)
            remembered = copy.deepcopy(kept.state_dict())
            model, optimizer = poseidon.distribute(model, torch.optim.Adam(model.parameters(), lr=0.01), step="layer", backend=make_backend)
            optimizer.load_state_dict(remembered)
            train(model, optimizer, 2)
            state = copy.deepcopy(model.state_dict())
            poseidon.finish()
            return state

        reference = network()
        optimizer = torch.optim.Adam(reference.parameters(), lr=0.01)
        train(reference, optimizer, 2)
        train(reference, optimizer, 2)
        self.assert_close(alone(script), reference.state_dict())

    def test_state_of_the_servers_is_not_loaded(self):
        def script(model, optimizer):
            other = network()
            stepped = torch.optim.Adam(other.parameters())
            train(other, stepped, 1)
            optimizer.load_state_dict(stepped.state_dict())
        self.refused("what it remembers is the servers'", script, optimizer=lambda model: torch.optim.Adam(model.parameters()))
        self.refused("load before distribute", lambda model, optimizer: model.load_state_dict(network().state_dict()))

    def test_what_clipping_refuses(self):
        def infinite(model, optimizer):
            loss_of(model, 0).backward()
            poseidon.clip_grad_norm_(model.parameters(), 2.0, float("inf"))
        self.refused("norm_type inf", infinite, step="server")

        def some(model, optimizer):
            loss_of(model, 0).backward()
            poseidon.clip_grad_norm_(model[0].parameters(), 1.0)
        self.refused("of some of the parameters", some)

    def test_servers_do_not_wait_for_a_script_that_does_not_clip(self):
        def script(make_backend, rank):
            model, optimizer = poseidon.distribute(models[rank], sgd(models[rank]), step="server", clips=clips, backend=make_backend)
            backend = current().backend
            ahead = []
            give = backend.rates

            def rates(*arguments):
                ahead.append(not any(layer.reported for layer in current().layers))
                give(*arguments)
            backend.rates = rates
            for i in range(3):
                loss_of(model, i, rank).backward()
                optimizer.step()
            poseidon.finish()
            return ahead

        for clips, expected in ((None, [False, True, True]), (True, [False] * 3), (False, [True] * 3)):
            models = [network(), network()]
            self.assertEqual(twin.run(2, script)[0], [expected, expected])

    def test_what_comes_too_late_for_servers_that_do_not_wait_is_refused(self):
        def clips_later(model, optimizer):
            train(model, optimizer, 1)
            loss_of(model, 0).backward()
            poseidon.clip_grad_norm_(model.parameters(), 2.0)
        self.refused("in this iteration and not in the first", clips_later, step="server")

        def changes_later(model, optimizer):
            train(model, optimizer, 1)
            loss_of(model, 0).backward()
            optimizer.param_groups[0]["lr"] = 0.75
            optimizer.step()
        self.refused("the servers have stepped already", changes_later, step="server")

    def test_gradients_that_change_after_they_were_sent(self):
        def clips(model, optimizer):
            loss_of(model, 0).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()

        def scales(model, optimizer):
            loss_of(model, 0).backward()
            model[2].weight.grad.mul_(0.5)
            optimizer.step()
        for step in ("server", "layer", "worker"):
            self.refused("was changed after it was sent: clip with poseidon.clip_grad_norm_", clips, step=step)
            self.refused("the gradient of 2.weight was changed", scales, step=step)

    def test_norm_is_that_of_the_mean_gradient(self):
        for step in ("server", "layer", "worker"):
            def script(make_backend, rank):
                model, optimizer = poseidon.distribute(models[rank], sgd(models[rank]), step=step, backend=make_backend)
                loss_of(model, 0, rank).backward()
                norm = poseidon.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()
                poseidon.finish()
                return norm.item()

            models = [network(), network()]
            first, second = twin.run(2, script)[0]
            reference = network()
            ((loss_of(reference, 0, 0) + loss_of(reference, 0, 1)) / 2).backward()
            self.assertEqual(first, second)
            self.assertAlmostEqual(first, nn.utils.clip_grad_norm_(reference.parameters(), 0.01).item(), places=5)

    def test_grad_scaler_is_refused(self):
        def script(model, optimizer):
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(loss_of(model, 0)).backward()
            scaler.step(optimizer)
        self.refused("GradScaler cannot be used", script)

    def test_step_hooks_and_schedulers(self):
        for step in ("server", "layer", "worker"):
            def script(make_backend):
                model, calls = network(), []
                model, optimizer = poseidon.distribute(model, sgd(model), step=step, backend=make_backend)
                optimizer.register_step_post_hook(lambda *_: calls.append(1))
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # "lr_scheduler.step() before optimizer.step()"
                    for i in range(3):
                        train(model, optimizer, 1)
                        scheduler.step()
                poseidon.finish()
                return len(calls)
            self.assertEqual(alone(script), 3, step)

    # Around a job.

    def test_parameters_survive_the_end(self):
        def script(make_backend):
            model = network()
            model, optimizer = poseidon.distribute(model, sgd(model), backend=make_backend)
            train(model, optimizer, 2)
            poseidon.finish()
            session = current()
            for slot in session.slots:
                slot.value.fill_(math.nan)  # the library's memory is gone
            with self.assertRaisesRegex(Invalid, "has left its job"):
                optimizer.step()
            return model(torch.ones(1, 4)).isfinite().all().item()
        self.assertTrue(alone(script))

    def test_copies_of_a_model_work(self):
        def script(make_backend):
            model = network()
            model, optimizer = poseidon.distribute(model, sgd(model), backend=make_backend)
            train(model, optimizer, 2)
            poseidon.wait(model)
            average = copy.deepcopy(model)
            average.load_state_dict(model.state_dict())
            same = torch.equal(average(torch.ones(1, 4)), model(torch.ones(1, 4)))
            poseidon.finish()
            return same
        self.assertTrue(alone(script))

    def test_forked_process_gets_an_error(self):
        def script(make_backend):
            model = network()
            model, optimizer = poseidon.distribute(model, sgd(model), backend=make_backend)
            train(model, optimizer, 1)
            session = current()
            session.pid += 1  # as in a child
            with self.assertRaisesRegex(Invalid, "was forked"):
                poseidon.wait(model)
            session.close()
            self.assertTrue(session.open, "a child leaves nothing")
            session.pid -= 1
            poseidon.finish()
        alone(script)

    def test_reported_losses(self):
        def script(make_backend):
            model = network()
            model, optimizer = poseidon.distribute(model, sgd(model), backend=make_backend)
            for value in (2.5, None, torch.tensor(1.5)):
                loss_of(model, 0).backward()
                if value is not None:
                    poseidon.report(loss=value)
                optimizer.step()
            poseidon.wait()
            losses = dict(make_backend.args[0].losses)
            poseidon.finish()
            return losses
        losses = alone(script)
        self.assertEqual((losses[0, 0], losses[2, 0]), (2.5, 1.5))
        self.assertTrue(math.isnan(losses[1, 0]))

    def test_save(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.safetensors"

            def script(make_backend, rank):
                model, optimizer = poseidon.distribute(models[rank], sgd(models[rank]), backend=make_backend)
                train(model, optimizer, 2, rank)
                poseidon.save(path, model)
                state = copy.deepcopy(model.state_dict())
                poseidon.finish()
                return state

            models = [network(), network()]
            state = twin.run(2, script)[0][0]
            content = path.read_bytes()
            length, = struct.unpack("<Q", content[:8])
            header = json.loads(content[8:8 + length])
            self.assertEqual(list(header), list(state))
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                self.assertEqual((entry["dtype"], entry["shape"]), ("F32", list(state[name].shape)))
                self.assertEqual(content[8 + length + begin:8 + length + end], state[name].numpy().tobytes())
            self.assertEqual(os.listdir(folder), ["model.safetensors"])

    def test_batch_norm_statistics_are_those_of_worker_0(self):
        def script(make_backend, rank):
            model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
            model[1].running_mean.fill_(rank + 1)
            model, optimizer = poseidon.distribute(model, sgd(model), backend=make_backend)
            begun = model[1].running_mean[0].item()
            train(model, optimizer, 2, rank)
            mean = model[1].running_mean.clone()
            poseidon.finish()
            return begun, mean
        (first, mean), (second, _) = (results := twin.run(2, script))[0]
        self.assertEqual((first, second), (1, 1))
        self.assertTrue(torch.equal(results[1].state[:2], mean))


if __name__ == "__main__":
    support.main()
