"""DeviceTimeline against a clock that the test moves."""

import unittest

from timeline import DeviceTimeline


class Clock:
    def __init__(self):
        self.now = 100.0
        self.oversleep = 0.0
        self.sleeps = []

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds + self.oversleep


class TimelineTest(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()

    def timeline(self, slow_motion=1.0):
        return DeviceTimeline(slow_motion, now=lambda: self.clock.now, sleep=self.clock.sleep)

    def test_work_takes_its_time_in_slow_motion(self):
        timeline = self.timeline(slow_motion=20)
        timeline.compute(0.5)
        self.assertEqual(self.clock.now, 110)
        self.assertEqual(timeline.free_at, 110)

    def test_work_catches_up_an_oversleep(self):
        timeline = self.timeline()
        self.clock.oversleep = 0.25
        timeline.compute(1)
        timeline.compute(1)
        self.assertEqual(self.clock.sleeps, [1, 0.75])
        self.assertEqual(timeline.free_at, 102)

    def test_work_that_is_done_already_is_not_slept_for(self):
        timeline = self.timeline()
        self.clock.now += 5
        timeline.compute(1)
        self.assertEqual(self.clock.sleeps, [])
        self.assertEqual(timeline.free_at, 101)

    def test_a_device_that_waited_for_inputs_begins_when_they_come(self):
        timeline = self.timeline()
        timeline.compute(1)
        self.clock.now += 3
        timeline.inputs_are_there()
        timeline.compute(1)
        self.assertEqual(self.clock.now, 105)

    def test_inputs_that_come_early_wait_for_the_device(self):
        self.clock.sleep = lambda seconds: None  # the work goes on while the thread does something else
        timeline = self.timeline()
        timeline.compute(2)
        timeline.inputs_are_there()
        self.assertEqual(timeline.free_at, 102)


if __name__ == "__main__":
    unittest.main()
