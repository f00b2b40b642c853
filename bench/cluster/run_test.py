"""The grid's arithmetic: profiles, factors, bounds, rows. Needs no cluster."""

import contextlib
import hashlib
import io
import json
import pathlib
import sys
import tempfile
import types
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


def a_measurement(busy=0.4):
    return Measurement(seconds=[1.0], cpu_seconds=1.0, busy=busy, sent_bytes=[1], received_bytes=[1])


class FakeMeasurer:
    """Answers `busy` of (variant, factor); keeps what it was asked for."""

    def __init__(self, busy):
        self._busy = busy
        self.asked = []

    def plan(self, *_):
        return {"iteration_bytes": 4e9, "chunk_bytes": 65536, "layers": [{"type": "convolution", "ps_bytes": 1e9, "sfb_bytes": 0}]}

    def run(self, _, variant, slow):
        self.asked.append((variant, slow))
        return a_measurement(self._busy(variant, slow))


class FactorTest(unittest.TestCase):
    place = run.Place(a_profile(), 6, 4, 10)

    def measure(self, busy, slow=None, rounds=2):
        measurer = FakeMeasurer(busy)
        with contextlib.redirect_stdout(io.StringIO()):
            rows, failed = run.measure(measurer, self.place, ["poseidon", "ddp-tuned"], types.SimpleNamespace(rounds=rounds), slow)
        self.assertEqual(failed, [])
        return measurer.asked, rows

    def test_peers_have_the_factor_that_needs_to_be_largest(self):
        plan, bound_s = FakeMeasurer(None).plan(), 3.0
        alone = [run.slow_for_all(self.place, [variant], plan, bound_s) for variant in ("poseidon", "ddp-tuned")]
        self.assertGreater(alone[0], 1.5 * alone[1])
        self.assertEqual(run.slow_for_all(self.place, ["ddp-tuned", "poseidon"], plan, bound_s), alone[0])
        asked, rows = self.measure(lambda *_: 0.4)
        self.assertEqual(asked, [(name, alone[0]) for name in ("poseidon", "ddp-tuned", "ddp-tuned", "poseidon")])
        self.assertEqual(len({row["f"] for row in rows}), 1)
        self.assertEqual([len(row["seconds"]) for row in rows], [2, 2])

    def test_where_one_was_too_busy_all_are_measured_again(self):
        [(_, first), *_], _ = self.measure(lambda *_: 0.4)
        asked, rows = self.measure(lambda variant, slow: 0.7 if variant == "ddp-tuned" and slow < 1.5 * first else 0.4)
        self.assertEqual([name for name, _ in asked], ["poseidon", "ddp-tuned"] * 2 + ["ddp-tuned", "poseidon"])
        self.assertAlmostEqual(asked[2][1], first * 0.7 / run.WANTED_BUSY)
        self.assertEqual([len(row["seconds"]) for row in rows], [2, 2])
        self.assertTrue(results.same_f(row["f"] for row in rows))

    def test_a_given_factor_is_kept_and_tries_come_to_an_end(self):
        asked, _ = self.measure(lambda *_: 0.7, slow=5)
        self.assertEqual({slow for _, slow in asked}, {5})
        asked, rows = self.measure(lambda *_: 0.7, rounds=1)
        self.assertEqual(len({slow for _, slow in asked}), run.MAX_TRIES)
        self.assertEqual([row["busy"] for row in rows], [0.7, 0.7])

    def test_added_rounds_have_the_factor_of_what_they_are_added_to(self):
        row = run.row(self.place, "poseidon", [a_measurement()], 8.0, 3.0, 3.5)
        given, none = (types.SimpleNamespace(slow=slow) for slow in (20.0, None))
        self.assertEqual(run.slow_at(self.place, none, [row]), 8.0)
        self.assertEqual(run.slow_at(self.place, given, []), 20.0)
        with self.assertRaisesRegex(results.ResultsError, "--slow 20, but what is added to was measured at f 8; leave --slow out"):
            run.slow_at(self.place, given, [row])
        with self.assertRaisesRegex(results.ResultsError, "small, card, 4, 10 Gbit/s have factors f from 8 to 16: nothing is added"):
            run.slow_at(self.place, none, [row, {**row, "variant": "ddp", "f": 16.0}])


class ProgramsTest(unittest.TestCase):
    def test_rounds_are_added_to_those_of_the_same_programs_only(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "poseidon").write_bytes(b"one")
            (path / "poseidon-server").write_bytes(b"two")
            arguments = types.SimpleNamespace(bin=path, python=sys.executable)
            then = run.programs_of(arguments, ["poseidon"])
            self.assertEqual(then, {"poseidon": hashlib.sha256(b"one").hexdigest(),
                                    "poseidon-server": hashlib.sha256(b"two").hexdigest()})
            results.check_same_programs({**then, "torch": "1.13.1"}, {"programs": then})  # a peer that was not there before
            (path / "poseidon-server").write_bytes(b"other")
            with self.assertRaisesRegex(results.ResultsError, r"other programs than these \(poseidon-server differ\).*--bin"):
                results.check_same_programs(run.programs_of(arguments, ["poseidon"]), {"programs": then})
            with self.assertRaisesRegex(results.ResultsError, "does not say which programs .* another --json"):
                results.check_same_programs(then, {})

    def test_the_command_refuses_before_it_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "poseidon").write_bytes(b"one")
            (path / "poseidon-bench-worker").write_bytes(b"")
            row = run.row(FactorTest.place, "poseidon", [a_measurement()], 8.0, 3.0, 3.5)
            (path / "r.json").write_text(json.dumps({"date": "2026-01-01", "machine": {}, "command": "c", "rows": [row],
                                                     "programs": {"poseidon": "0"}}))
            command = ["run.py", "--variants", "poseidon", "--bin", folder, "--json", str(path / "r.json"), "--add"]
            with unittest.mock.patch("sys.argv", command), unittest.mock.patch.object(run.machine, "clean_up_on_signals"), \
                    unittest.mock.patch.object(run.hosts, "exit_unless_possible"), \
                    unittest.mock.patch.object(run.machine, "begin_run", return_value=(path, {"date": "", "machine": {}})), \
                    self.assertRaisesRegex(SystemExit, "run.py: .*r.json was measured with other programs"):
                run.main()


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
