"""Which optimizers the servers have, and how one of torch's is told to them. Pure.

Called by: distribute.py, modes.py. Calls: nothing; docs/optimizer.md has the keys and the arithmetic.
"""

import torch

# They step each element by itself (or each parameter, in what they remember), so that one parameter can be stepped before
# the gradients of the others are there.
BY_PARAMETER = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop", "ASGD")


def why_not_on_servers(optimizer):
    """Why the servers cannot make exactly this optimizer's steps; "" when they can."""
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        return f"the servers have torch.optim.SGD, Adam and AdamW, not {kind.__module__}.{kind.__name__}"
    first = optimizer.param_groups[0]
    refused = {"maximize": False, "differentiable": False, "amsgrad": False, "dampening": 0}
    same = ("momentum", "nesterov") if kind is torch.optim.SGD else ("betas", "eps")
    for i, group in enumerate(optimizer.param_groups):
        for key, allowed in refused.items():
            if group.get(key, allowed) != allowed:
                return f"the servers have no {key}={group[key]} (parameter group {i})"
        for key in same:
            if group[key] != first[key]:
                return f"the servers have one {key} for all parameters; group 0 has {first[key]}, group {i} has {group[key]}"
    if not all(0 <= float(beta) < 1 for beta in (first["betas"] if "betas" in first else (first["momentum"],))):
        return "the servers take momentum and betas from 0 to less than 1"
    if optimizer.state:
        return ("the optimizer has stepped already, and what it remembers cannot be given to the servers yet: distribute it before "
                "its first step and before load_state_dict()")
    return ""


def default_step(optimizer):
    """The first of the three kinds of steps that the optimizer allows."""
    if not why_not_on_servers(optimizer):
        return "server"
    kind = type(optimizer)
    return "layer" if kind.__module__.startswith("torch.optim") and kind.__name__ in BY_PARAMETER else "worker"


def rates_of(optimizer):
    """Per parameter group: (learning rate, weight decay)."""
    return tuple((float(group["lr"]), float(group["weight_decay"])) for group in optimizer.param_groups)


def server_optimizer(optimizer):
    """The job's "optimizer". Each step brings the rates of all tensors."""
    first = optimizer.param_groups[0]
    job = {"rates": "program", "learning_rate": max(rate for rate, _ in rates_of(optimizer))}
    if isinstance(optimizer, torch.optim.SGD):
        job |= {"type": "sgd", "momentum": float(first["momentum"])}
        if first["nesterov"]:
            job["nesterov"] = True
        return job
    beta1, beta2 = (float(beta) for beta in first["betas"])
    decoupled = isinstance(optimizer, torch.optim.AdamW) or first.get("decoupled_weight_decay", False)
    return job | {"type": "adamw" if decoupled else "adam", "beta1": beta1, "beta2": beta2, "epsilon": float(first["eps"])}
