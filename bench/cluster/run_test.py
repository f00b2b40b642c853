"""The grid's arithmetic: profiles, factors, bounds, rows. Needs no cluster."""

import contextlib
import io
import pathlib
import sys
import unittest
import unittest.mock

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "common")]

import device_profile  # noqa: E402
import poseidon_run  # noqa: E402
import profiles  # noqa: E402
import results  # noqa: E402
import run  # noqa: E402
from measurement import Measurement  # noqa: E402

DESCRIBED = {"name": "small", "layers": [
    {"name": "conv", "type": "convolution", "parameters": 2 * 9 * 3 + 2, "multiply_adds": 2 * 27 * 16, "input_shape": [3, 6, 6],
     "output_shape": [2, 4, 4]},
    {"name": "bn", "type": "batch_norm", "parameters": 4, "multiply_adds": 0, "input_shape": [2, 4, 4], "output_shape": [2, 4, 4]},
    {"name": "relu", "type": "relu", "parameters": 0, "multiply_adds": 0, "input_shape": [2, 4, 4], "output_shape": [2, 4, 4]},
    {"name": "fc", "type": "fully_connected", "parameters": 5 * 32, "multiply_adds": 160, "input_shape": [2, 4, 4],
     "output_shape": [5]}]}


def a_profile():
    return {"network": "small", "device": "card", "batch_size": 2, "device_flops": 1e12, "device_bytes_per_s": 1e11,
            "layers": profiles.split(DESCRIBED, 3.0)}


class ProfilesTest(unittest.TestCase):
    def test_time_goes_by_multiply_adds_a_third_forward(self):
        conv, bn, fc = profiles.split(DESCRIBED, 3.0)
        self.assertAlmostEqual(conv["forward_s"], 864 / 1024)
        self.assertAlmostEqual(fc["backward_s"], 2 * 160 / 1024)
        self.assertEqual(bn["forward_s"], 0)
        self.assertAlmostEqual(profiles.compute_s(a_profile()), 3.0)

    def test_tensors_are_the_layers(self):
        conv, bn, fc = (layer["tensors"] for layer in profiles.split(DESCRIBED, 3.0))
        self.assertEqual((conv, bn, fc), ([[2, 27], [2]], [[2], [2]], [[5, 32]]))
        self.assertEqual(profiles.parameters(a_profile()), 56 + 4 + 160)

    def test_peers_read_the_same_profile(self):
        self.assertEqual(device_profile.parse(a_profile()).parameters, 220)


class GridTest(unittest.TestCase):
    def test_moving_more_takes_a_larger_factor(self):
        self.assertGreater(run.first_slow(400e9, 32, 1.0, 2.0), 1.9 * run.first_slow(200e9, 32, 1.0, 2.0))
        self.assertEqual(run.first_slow(0, 1, 0.01, 2.0), run.LEAST_ITERATION_S / 0.01)

    def test_small_chunks_take_a_larger_factor(self):
        self.assertAlmostEqual(run.cpu_s_per_gb(65536), 3.5, 1)
        self.assertAlmostEqual(run.cpu_s_per_gb(262144), 2.0, 1)

    def test_the_bound_takes_each_layers_cheaper_scheme(self):
        layers = [{"type": kind, "ps_bytes": ps, "sfb_bytes": sfb} for kind, ps, sfb in (
            ("convolution", 10, 0), ("fully_connected", 10, 4), ("fully_connected", 3, 4))]
        self.assertEqual(run.best_scheme_bytes({"layers": layers}), 17)

    def test_a_row_is_what_charts_read(self):
        runs = [Measurement(seconds=[s, s], cpu_seconds=s, busy=busy, sent_bytes=[5, 7], received_bytes=[6, 7], stall_s={"fc": s})
                for s, busy in ((4.0, 0.4), (6.0, 0.7), (5.0, 0.5))]
        made = run.row(run.Place(a_profile(), 6, 4, 10), "poseidon", runs, 8.0, 3.0, 3.5)
        self.assertEqual((made["speedup"], made["busy"], made["bytes_per_host"]), (4 * 3.0 / 5.0, 0.7, 14))
        self.assertEqual(made["stall_s"], {"fc": 5.0})
        results.check({"date": "", "machine": {}, "command": "", "rows": [made]})

    def test_servers_of_the_variants(self):
        servers = {name: variant.server_count(8) for name, variant in poseidon_run.VARIANTS.items()}
        self.assertEqual((servers["poseidon"], servers["half-servers"], servers["quarter-servers"]), (8, 4, 2))

    def test_help_is_told(self):
        told = io.StringIO()
        with unittest.mock.patch("sys.argv", ["run.py", "--help"]), contextlib.redirect_stdout(told):
            self.assertRaises(SystemExit, run.parse_arguments)
        self.assertIn("--grid", told.getvalue())


if __name__ == "__main__":
    unittest.main()
