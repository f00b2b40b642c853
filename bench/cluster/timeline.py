"""The emulated device's time: what it computes takes its time and does nothing.

Work follows work without a gap while its inputs are there, so its ends are known beforehand. Whoever waits for one
sleeps until that very moment. A sleep that ends late, or a thread that had something else to do meanwhile, does not
move the moments after it: a device that is given its work in advance would not have noticed either.
"""

import time


class DeviceTimeline:
    """Of one device, for one thread. `slow_motion` multiplies all times."""

    def __init__(self, slow_motion, now=time.monotonic, sleep=time.sleep):
        self._slow_motion = slow_motion
        self._now = now
        self._sleep = sleep
        self._free_at = now()

    @property
    def free_at(self):
        """When what was computed until now is done, in the clock's seconds."""
        return self._free_at

    def inputs_are_there(self):
        """The next work waited for something that came just now; where the device is busy for longer, it waits for that."""
        self._free_at = max(self._free_at, self._now())

    def compute(self, seconds):
        """Returns when the device has done work of so many seconds, before slow motion, after all that it was given."""
        self._free_at += seconds * self._slow_motion
        wait = self._free_at - self._now()
        if wait > 0:
            self._sleep(wait)
