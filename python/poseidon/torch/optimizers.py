"""Which optimizers the servers have, and how one of torch's is told to them. Pure.

Called by: distribute.py, modes.py. Calls: nothing; docs/optimizer.md has the keys and the arithmetic.
"""

import torch

from poseidon.errors import Invalid

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


def server_optimizer(optimizer, group_of, clip_norm, takes_rates):
    """The job's "optimizer". group_of: {full name of a tensor: its parameter group}, in the order of layers.

    takes_rates: each step brings the rates of the groups, and a rule names a tensor's group; otherwise the job's rates are
    those of now, as multiples of the first group's.
    """
    first = optimizer.param_groups[0]
    if isinstance(optimizer, torch.optim.SGD):
        job = {"type": "sgd", "momentum": float(first["momentum"])}
        if first["nesterov"]:
            job["nesterov"] = True
    else:
        beta1, beta2 = (float(beta) for beta in first["betas"])
        job = {"type": "adamw" if isinstance(optimizer, torch.optim.AdamW) else "adam",
               "beta1": beta1, "beta2": beta2, "epsilon": float(first["eps"])}
        if not isinstance(optimizer, torch.optim.AdamW) and first.get("decoupled_weight_decay", False):
            job["type"] = "adamw"
    rates = rates_of(optimizer)
    job["learning_rate"] = next((rate for rate, _ in rates if rate > 0), 0.0)
    job["weight_decay"] = next((decay for _, decay in rates if decay > 0), 0.0)
    if clip_norm:
        job["clip_norm"] = float(clip_norm)
    rules = group_rules(group_of) if takes_rates else multiplier_rules(job, rates, group_of)
    return job | ({"layers": rules} if rules else {})


def group_rules(group_of):
    return [{"match": name, "group": group} for name, group in group_of.items() if group != 0]


def multiplier_rules(job, rates, group_of):
    if job["learning_rate"] == 0:
        raise Invalid("the learning rate of every parameter group is 0, and this version of the client library keeps the rates that a "
                      "job begins with: nothing would be trained")
    rules = []
    for name, group in group_of.items():
        rate, decay = rates[group]
        rule = {"match": name}
        if rate != job["learning_rate"]:
            rule["learning_rate_multiplier"] = rate / job["learning_rate"]
        if decay != job["weight_decay"]:
            rule["weight_decay_multiplier"] = decay / job["weight_decay"]
        if len(rule) > 1:
            rules.append(rule)
    return rules
