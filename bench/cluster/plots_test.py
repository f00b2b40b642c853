"""Charts and tables of made-up rows have what they should."""

import json
import pathlib
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

import plots  # also finds bench/common
import results
from results import ResultsError


def row(variant, hosts=4, gbit=10, seconds=0.5, **changes):
    return {"network": "net", "profile": "card", "hosts": hosts, "gbit": gbit, "variant": variant, "f": 20,
            "seconds": [seconds, seconds], "speedup": hosts * 0.5 / seconds, "bytes_per_host": 3e6, "cpu_seconds": 1,
            "busy": 0.5, "stall_s": None, "bound_s": 0.4, "compute_s": 0.4, **changes}


ROWS = [row("ddp", hosts, gbit, seconds=0.625) for hosts in (2, 4) for gbit in (10, 40)]
ROWS += [row("poseidon", hosts, gbit, stall_s={"conv": 0.001, "fc": 0.02}) for hosts in (2, 4) for gbit in (10, 40)]


def texts(image):
    return [element.text for element in ElementTree.fromstring(image).iter("{http://www.w3.org/2000/svg}text")]


def tips(image):
    return [element.text for element in ElementTree.fromstring(image).iter("{http://www.w3.org/2000/svg}title")]


class ChartsTest(unittest.TestCase):
    def test_the_charts_that_the_rows_allow(self):
        self.assertEqual(set(plots.draw(ROWS)), {
            "speedup-nodes-net-card-10gbit.svg", "speedup-nodes-net-card-40gbit.svg",
            "speedup-bandwidth-net-card-2nodes.svg", "speedup-bandwidth-net-card-4nodes.svg",
            "bytes-card-4nodes-10gbit.svg", "stall-net-card-4nodes-10gbit.svg",
            *(f"peers-card-{hosts}nodes-{gbit}gbit.svg" for hosts in (2, 4) for gbit in (10, 40))})

    def test_one_number_of_nodes_is_no_line(self):
        self.assertEqual(set(plots.draw([row("poseidon")])), {"bytes-card-4nodes-10gbit.svg"})

    def test_speed_ups_are_drawn_with_the_ideal(self):
        image = plots.draw(ROWS)["speedup-nodes-net-card-10gbit.svg"]
        self.assertEqual(image.count("<polyline") - image.count('stroke="#e2e2dc"') - image.count('stroke="#999"'), 2)
        self.assertIn("ideal", texts(image))
        self.assertIn("poseidon 4.0", texts(image))
        self.assertIn("poseidon: 2.00 at 2", tips(image))
        self.assertIn("ddp: 3.20 at 4", tips(image))

    def test_the_ratio_to_a_peer(self):
        image = plots.draw(ROWS)["peers-card-4nodes-10gbit.svg"]
        self.assertIn("to ddp", texts(image))
        self.assertIn("0.80", texts(image))

    def test_a_ratio_of_different_factors_is_marked(self):
        image = plots.draw([*ROWS, row("mpi", f=10)])["peers-card-4nodes-10gbit.svg"]
        self.assertIn("0.80", texts(image))
        self.assertIn("1.00 *", texts(image))
        self.assertTrue(any(text.endswith("*: at different f") for text in texts(image)))
        self.assertFalse(any("different f" in text for text in texts(plots.draw(ROWS)["peers-card-4nodes-10gbit.svg"])))

    def test_the_line_of_the_peer_goes_through_no_ratio(self):
        for seconds in (0.5, 0.49, 0.475, 0.45, 0.4):
            image = plots.draw([row("ddp"), row("poseidon", seconds=seconds)])["peers-card-4nodes-10gbit.svg"]
            svg = "{http://www.w3.org/2000/svg}"
            words = next(one for one in ElementTree.fromstring(image).iter(svg + "text") if one.text == f"{seconds / 0.5:.2f}")
            line = next(ElementTree.fromstring(image).iter(svg + "polyline")).get("points")
            begin, at = float(words.get("x")), float(line.split(",")[0])
            self.assertFalse(begin <= at <= begin + 30, seconds)

    def test_stall_of_each_layer_in_milliseconds(self):
        shown = texts(plots.draw(ROWS)["stall-net-card-4nodes-10gbit.svg"])
        for word in ("conv", "1.00", "fc", "20.00"):
            self.assertIn(word, shown)

    def test_only_the_layers_that_waited_longest(self):
        stall = {f"layer{number}": 0.001 * number for number in range(40)}
        shown = texts(plots.draw([row("poseidon", stall_s=stall)])["stall-net-card-4nodes-10gbit.svg"])
        self.assertIn("layer39", shown)
        self.assertNotIn("layer27", shown)
        self.assertTrue(any("the 12 of 40 layers" in text for text in shown))

    def test_void_runs_are_not_drawn(self):
        void = [row("ddp", busy=0.81)]
        self.assertNotIn("ddp", "".join(plots.draw([row("poseidon")] + void).values()))

    def test_names_are_escaped_and_file_names_plain(self):
        charts = plots.draw([row("a<b", network="n/1")])
        self.assertEqual(list(charts), ["bytes-card-4nodes-10gbit.svg"])
        self.assertIn("a<b", texts(charts["bytes-card-4nodes-10gbit.svg"]))
        stall = plots.draw([row("poseidon", network="n/1", stall_s={"fc": 1})])
        self.assertIn("stall-n-1-card-4nodes-10gbit.svg", stall)


class TablesTest(unittest.TestCase):
    def test_the_best_peer_is_compared(self):
        text = results.tables([row("poseidon"), row("ddp", seconds=0.625), row("mpi", seconds=1.0)])
        self.assertIn("| net | card | 10 | 4 | 0.5000 | 0.6250 (ddp) | 0.800 | 1.250 |", text)
        self.assertIn("| net | card | 10 | 4 | 4.00 | 3.20 | 2.00 |", text)

    def test_a_ratio_of_different_factors_says_so(self):
        text = results.tables([row("poseidon"), row("ddp", seconds=0.625, f=10)])
        self.assertIn("| 0.6250 (ddp) | 0.800 (f 20 and 10) |", text)
        self.assertIn("Not all variants had the same f here, and a larger one flatters (f is in the last table): net, card, 4 nodes", text)
        self.assertNotIn("the same f", results.tables([row("poseidon"), row("ddp", f=20.5)]))

    def test_void_runs_are_told_and_not_compared(self):
        text = results.tables([row("poseidon"), row("ddp", busy=0.9)])
        self.assertIn("90% **void**", text)
        self.assertNotIn("best peer", text)

    def test_an_ablation_is_no_peer(self):
        self.assertNotIn("best peer", results.tables([row("poseidon"), row("ps-only")]))


class FilesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="poseidon-bench-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, date, rows):
        path = self.folder / name
        path.write_text(json.dumps({"date": date, "machine": {}, "command": "c", "rows": rows}))
        return path

    def test_the_later_row_counts(self):
        new = self.write("a.json", "2026-02-02", [row("poseidon", seconds=0.25)])
        old = self.write("b.json", "2026-01-01", [row("poseidon"), row("mpi")])
        rows, heads = results.load([new, old])
        self.assertEqual([(one["variant"], results.seconds(one)) for one in rows], [("poseidon", 0.25), ("mpi", 0.5)])
        self.assertEqual([head["date"] for head in heads], ["2026-01-01", "2026-02-02"])

    def test_rounds_added_later_count_as_many(self):
        one = row("poseidon", seconds=0.5, f=20, busy=0.3, stall_s={"fc": 0.1})
        other = {**row("poseidon", f=20.1, busy=0.6, stall_s={"fc": 0.2}), "seconds": [1.0]}
        both = results.merged(one, other)
        self.assertEqual(both["seconds"], [0.5, 0.5, 1.0])
        self.assertEqual((both["f"], both["stall_s"]), (20, {"fc": 0.1}))  # of a run in the middle
        self.assertEqual(both["busy"], 0.6)                                # void if one of them is
        self.assertEqual(both["speedup"], one["hosts"] * 0.4 / 0.5)
        with self.assertRaisesRegex(ResultsError, "net, card, 4, 10, poseidon: runs at f 20 and at f 40 are no row together"):
            results.merged(one, {**other, "f": 40})

    def test_what_was_added_to_is_kept_in_the_head(self):
        path = self.write("a.json", "2026-02-02", [row("poseidon")])
        data = json.loads(path.read_text())
        path.write_text(json.dumps({**data, "earlier": [{"date": "2026-01-01", "machine": {}, "command": "b"}]}))
        _, [head] = results.load([path])
        self.assertEqual([each["command"] for each in head["earlier"]], ["b"])

    def test_bad_files_are_named(self):
        for change, words in (({"busy": "high"}, r"a.json: rows\[0\].busy is 'high'"), ({"seconds": []}, r"rows\[0\].seconds"),
                              ({"variant": ""}, r"rows\[0\].variant")):
            with self.assertRaisesRegex(ResultsError, words):
                results.load([self.write("a.json", "2026-01-01", [{**row("poseidon"), **change}])])
        (self.folder / "c.json").write_text("{}")
        with self.assertRaisesRegex(ResultsError, "c.json: it has no 'date'"):
            results.load([self.folder / "c.json"])


if __name__ == "__main__":
    unittest.main()
