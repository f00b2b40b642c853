"""One job under one scheme: time per iteration, bytes per host."""

import dataclasses
import typing

from cluster import WORKER, Cluster, per_iteration

WARM_UP = 2         # iterations that are not measured: connections open, buffers and congestion windows grow
TIMEOUT_S = 120     # of one job


@dataclasses.dataclass(frozen=True)
class Measurement:
    seconds: list            # between the ends of successive iterations, as the coordinator saw them
    images_per_s: float      # as the coordinator said at the last one: a window of 5 s
    sent_bytes: list         # per host and iteration
    received_bytes: list
    schemes: dict            # per layer, from the plan in force
    predicted: typing.Optional[dict]    # by the plan in force; None where nothing was measured before the job
    calibration: typing.Optional[dict]  # likewise

    @property
    def mean_s(self):
        return sum(self.seconds) / len(self.seconds)

    def busiest_bytes(self):
        """Of one direction of one card."""
        return max(self.sent_bytes + self.received_bytes)


def run(layout, programs, job, measured, folder, worker=WORKER):
    """`job` asks for WARM_UP + measured + 1 iterations: what happens at its end is not measured either."""
    with Cluster(layout, programs, folder, TIMEOUT_S, worker) as cluster:
        cluster.submit(job)
        ends = [cluster.wait_for_iteration(WARM_UP)]
        before = cluster.card_bytes()
        ends += [cluster.wait_for_iteration(WARM_UP + count) for count in range(1, measured + 1)]
        after = cluster.card_bytes()
        cluster.finish()
        plan = cluster.plan()
        return Measurement(seconds=[b - a for a, b in zip(ends, ends[1:])],
                           images_per_s=cluster.metrics_line(WARM_UP + measured - 1)["images_per_s"],
                           sent_bytes=per_iteration(before, after, measured, 0),
                           received_bytes=per_iteration(before, after, measured, 1),
                           schemes={layer["name"]: layer["scheme"] for layer in plan["layers"]},
                           predicted=plan.get("predicted"), calibration=plan.get("calibration"))
