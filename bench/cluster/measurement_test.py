"""Busy cores and void runs."""

import unittest

import measurement
from measurement import BusyCores, Measurement


def of(busy):
    return Measurement(seconds=[3.0, 1.0, 2.0], cpu_seconds=1.0, busy=busy, sent_bytes=[5, 7], received_bytes=[11, 2])


class MeasurementTest(unittest.TestCase):
    def test_figures(self):
        self.assertEqual(of(0.5).median_s, 2)
        self.assertEqual(of(0.5).mean_s, 2)
        self.assertEqual(of(0.5).busiest_bytes(), 11)

    def test_a_run_on_a_busy_machine_is_void(self):
        self.assertIsNone(of(0.8).void())
        self.assertIn("81% busy", of(0.81).void())

    def test_idle_and_waiting_for_disks_is_not_busy(self):
        # user nice system idle iowait irq softirq steal guest guest_nice
        stats = [measurement._jiffies(f"cpu  {line}\ncpu0 1\n") for line in (
            "100 10 50 1000 40 1 2 3 100 0", "120 20 60 1050 50 2 3 5 120 0")]
        moments = iter(stats)
        busy = BusyCores(now=lambda: next(moments))
        # 20 user, 10 nice, 10 system, 1 irq, 1 softirq, 2 steal of those and 50 idle, 10 waiting
        self.assertAlmostEqual(busy.share(), 44 / 104)

    def test_no_time_is_not_busy(self):
        self.assertEqual(BusyCores(now=lambda: (1, 2)).share(), 0)

    def test_this_machine_tells(self):
        busy = BusyCores()
        self.assertTrue(0 <= busy.share() <= 1)

    def test_another_file_is_named(self):
        with self.assertRaisesRegex(ValueError, "'intr'"):
            measurement._jiffies("intr 1 2\n")


if __name__ == "__main__":
    unittest.main()
