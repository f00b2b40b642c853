"""One rank of Horovod over Gloo on an emulated device, in a process of its own (peers.py starts it). Says lines of JSON on
stdout as ddp_rank.py does; its DistributedOptimizer reduces every gradient as soon as it is there, in place.

    horovod_rank.py --serve COUNT    the rendezvous of so many hosts instead, as horovodrun has it: says {"port"}, and ends
                                     when its standard input does
"""

import sys

import device_profile
from emulated_module import Checks, Rank, Tensors, parser, private_memory, say


def serve(count):
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(",".join(f"host{host}:1" for host in range(count))), count))
    say(port=port)
    sys.stdin.read()
    server.stop()


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]))
        return
    options = parser().parse_args()
    import horovod.torch as hvd
    import torch
    hvd.init()
    if (hvd.rank(), hvd.size()) != (options.rank, options.world):
        raise SystemExit(f"Horovod made this rank {hvd.rank()} of {hvd.size()} instead of {options.rank} of {options.world}")
    profile = device_profile.load(options.profile)
    checks = Checks(profile, options.rank, options.world, shared=False, left_out=lambda shape: False)
    rank = Rank(profile, options, [Tensors(profile, private_memory(profile))], checks)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(rank.module.parameters(), lr=0.1),
                                         named_parameters=rank.module.named_parameters())

    def backward(chain):
        rank.module(chain).backward()
        optimizer.synchronize()

    rank.train(options, backward)
    hvd.barrier()
    hvd.shutdown()


main()
