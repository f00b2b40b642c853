"""What a run of the emulated cluster answers, whoever ran it: Poseidon or a peer."""

import dataclasses
import pathlib
import statistics
import typing

# A machine that is busier than this adds waiting of its own to what is measured: the run is void.
VOID_BUSY = 0.8


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Seconds of `seconds` and `stall_s` are real time: what was measured in slow motion, divided by its factor."""

    seconds: list            # per measured iteration: between the ends of successive ones on the slowest worker
    cpu_seconds: float       # per iteration, of all processes of all hosts, as this machine spent them
    busy: float              # share of this machine's cores that was busy, with whatever, while it was measured: 0 to 1
    sent_bytes: list         # per host and iteration, as its card counts them
    received_bytes: list
    stall_s: typing.Optional[dict] = None  # layer -> per iteration, how long its compute waited; None: not told

    @property
    def median_s(self):
        return statistics.median(self.seconds)

    @property
    def mean_s(self):
        return statistics.fmean(self.seconds)

    def busiest_bytes(self):
        """Per iteration, of one direction of one card."""
        return max(self.sent_bytes + self.received_bytes)

    def void(self):
        """Why this run does not count; None when it does."""
        return void(self.busy)


def void(busy):
    """Why a run does not count on a machine that was so busy; None when it does."""
    if busy <= VOID_BUSY:
        return None
    return (f"this machine's cores were {busy:.0%} busy, which is above {VOID_BUSY:.0%}: take a larger slow-motion "
            "factor, or stop what else runs")


def _jiffies(stat):
    """(busy, all) of all cores since the machine's start, from the text of /proc/stat."""
    name, *counts = stat.splitlines()[0].split()
    if name != "cpu":
        raise ValueError(f"/proc/stat begins with '{name}', not with 'cpu'")
    # user nice system idle iowait irq softirq steal, then guests', which are in user and nice already
    counts = [int(count) for count in counts[:8]]
    return sum(counts) - counts[3] - counts[4], sum(counts)


def _now():
    return _jiffies(pathlib.Path("/proc/stat").read_text())


class BusyCores:
    """Counts from its making on: `busy = BusyCores(); ...; busy.share()`."""

    def __init__(self, now=_now):
        self._now = now
        self._begin = now()

    def share(self):
        """Of all cores' time until now, 0 to 1; 0 when no time has passed."""
        busy, everything = (new - old for new, old in zip(self._now(), self._begin))
        return busy / everything if everything > 0 else 0.0
