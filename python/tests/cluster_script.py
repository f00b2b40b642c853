"""One worker of cluster_test.py: trains a script of trajectory_test.py and writes its parameters.

    python cluster_script.py SCRIPT FOLDER STEP        (with the environment of python/README.md)
"""

import json
import sys

import support
import torch

import poseidon.torch as poseidon
import trajectory_test


def main(name, folder, step):
    torch.set_num_threads(1)
    script = getattr(trajectory_test, name)()
    model = script.make()
    optimizer = script.optimizer(model)
    model, optimizer = poseidon.distribute(model, optimizer, step=step, job={"iterations": trajectory_test.ITERATIONS},
                                           options={"join_timeout_s": 60, "wait_timeout_s": 60})
    trajectory_test.train(script, model, optimizer, poseidon.rank(), poseidon.world_size(), script.scheduler(optimizer))
    poseidon.save(f"{folder}/saved.safetensors", model)
    poseidon.finish()
    with open(f"{folder}/{poseidon.rank()}.json", "w") as file:
        json.dump({key: value.tolist() for key, value in model.state_dict().items()}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
