"""Starting PyTorch's Gloo on hosts: one process per host, as torchrun starts one per machine."""

import os
import subprocess
import sys

PORT = 4790  # of rank 0's store

# ProcessGroupGloo makes one set of connections and two threads per named interface, and collectives take the sets in
# turn. Naming the interface four times gives four sets over the same card, so several buckets travel at a time
# (counted with torch 1.13: three more connections and eight more threads). It is the only public knob: no option of
# init_process_group or of DDP says it.
TUNED_CONNECTIONS = 4


def default_python():
    """Debian's own has python3-torch, whatever other Python comes first in PATH."""
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable


def why_not(python):
    """Why this interpreter cannot; None when it can."""
    program = "import torch.distributed as d; assert d.is_gloo_available()"
    try:
        done = subprocess.run([python, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
                              check=False)
    except OSError as error:
        return f"{python}: {error.strerror}"
    if done.returncode != 0:
        return (f"{python} has no torch with Gloo: deploy/dependencies.sh --bench (package python3-torch), or name "
                "an interpreter that has one with --python")
    return None


def environment(interface, tuned):
    return {"GLOO_SOCKET_IFNAME": ",".join([interface] * (TUNED_CONNECTIONS if tuned else 1)),
            # As torchrun sets it where several processes share a machine, and here all hosts do.
            "OMP_NUM_THREADS": "1"}
