"""In which order bench/gpu.sh compare measures, and how it goes on where an earlier call stopped."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from cells import GOALS, GUESS_S, Cell, cell_of, fits, given_up, in_order, take_over  # noqa: E402

OURS = "poseidon"
H100, H200 = "NVIDIA H100 80GB HBM3, 550.54, 81559 MiB, 700.00 W", "NVIDIA H200, 550.54, 143771 MiB, 700.00 W"


def row(cell, variant):
    return {"network": cell.network, "batch": cell.batch, "precision": cell.precision, "compiled": cell.compiled, "variant": variant}


def document(rows, failures=(), gpu=H100):
    return {"calls": [{"machine": {"gpu": gpu}}], "rows": list(rows), "failures": list(failures)}


class Order(unittest.TestCase):
    def test_what_is_wanted_most_comes_first(self):
        cells = in_order((*GOALS, "alexnet"), [64, 32], ["bf16", "tf32"], with_compile=True)
        self.assertEqual(cells[:10], [Cell(network, 64, precision) for precision in ("bf16", "tf32") for network in GOALS])
        self.assertEqual(cells[10:20], [Cell(cell.network, 64, cell.precision, compiled=True) for cell in cells[:10]])
        self.assertEqual(cells[20], Cell("alexnet", 64, "bf16"))
        self.assertFalse(any(cell.compiled for cell in cells[20:34]))
        self.assertTrue(all(cell.compiled for cell in cells[34:]))
        self.assertEqual(len(set(cells)), 6 * 2 * 2 * 2)
        self.assertEqual(len(cells), len(set(cells)))

    def test_the_batches_and_precisions_are_taken_as_given(self):
        cells = in_order(["resnet50"], [128, 32], ["fp32", "bf16"], with_compile=False)
        self.assertEqual([str(cell) for cell in cells],
                         ["resnet50:128:fp32", "resnet50:128:bf16", "resnet50:32:fp32", "resnet50:32:bf16"])
        self.assertEqual(str(Cell("resnet50", 32, "tf32", compiled=True)), "resnet50:32:tf32:compile")


class GoingOn(unittest.TestCase):
    def test_three_calls_measure_each_cell_once(self):
        cells = in_order(GOALS, [64], ["bf16"], with_compile=True)
        earlier, rows = None, []
        for _ in range(3):
            done = set()
            if earlier is not None:
                done, rows, _ = take_over(earlier, OURS, H100)
            left = [cell for cell in cells if cell not in done]
            rows = rows + [row(cell, variant) for cell in left[:4] for variant in (OURS, "torch")]
            earlier = document(rows)
        self.assertEqual([cell_of(one) for one in earlier["rows"] if one["variant"] == OURS], cells)

    def test_a_cell_that_ours_is_missing_from_is_measured_again(self):
        whole, half = Cell("vgg19", 64, "bf16"), Cell("vgg19", 64, "bf16", compiled=True)
        failures = [{**row(cell, "torch compile"), "error": "out of memory"} for cell in (whole, half)]
        earlier = document([row(whole, OURS), row(whole, "torch"), row(half, "torch")], failures)
        done, rows, failed = take_over(earlier, OURS, H100)
        self.assertEqual(done, {whole})
        self.assertEqual(rows, [row(whole, OURS), row(whole, "torch")])
        self.assertEqual(failed, failures[:1])

    def test_a_cell_that_was_given_up_is_not_tried_again(self):
        long = Cell("resnet152", 64, "bf16", compiled=True)
        failure = given_up(long, OURS, 540.0)
        done, rows, failed = take_over(document([row(long, "torch compile"), row(Cell("vgg19", 64, "bf16"), "torch")], [failure]),
                                       OURS, H100)
        self.assertEqual(done, {long})
        self.assertEqual(rows, [row(long, "torch compile")])
        self.assertEqual(failed, [failure])
        self.assertIn("540 s", failure["error"])

    def test_figures_of_different_gpus_are_not_put_together(self):
        earlier = document([row(Cell("vgg19", 64, "bf16"), OURS)])
        with self.assertRaisesRegex(ValueError, "NVIDIA H100 .*, this is NVIDIA H200"):
            take_over(earlier, OURS, H200)
        take_over(earlier, OURS, H100.replace("550.54", "560.1"))  # another machine with one like it


class Time(unittest.TestCase):
    def test_cells_with_compilation_are_judged_by_their_like(self):
        eager, compiled = Cell("vgg19", 64, "bf16"), Cell("vgg19", 64, "bf16", compiled=True)
        self.assertTrue(fits(eager, {}, GUESS_S[False]))
        self.assertFalse(fits(compiled, {False: 20.0}, GUESS_S[True] - 1))
        self.assertTrue(fits(compiled, {False: 20.0, True: 90.0}, 91.0))
        self.assertFalse(fits(eager, {False: 20.0}, 19.0))


if __name__ == "__main__":
    unittest.main()
