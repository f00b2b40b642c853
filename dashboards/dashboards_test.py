"""Dashboards and alerts as files: whole, unambiguous, and about metrics that there are. Standard library only.

Whether every key and value is Grafana's is schema_test.py's question; here, whether all that we want is there.
"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
FILES = sorted((FOLDER / "grafana" / "dashboards").glob("*.json"))
METRICS = set(re.findall(r"^\| `(poseidon_\w+)` \|", (FOLDER.parent / "docs" / "metrics.md").read_text(), re.MULTILINE))
RULES = (FOLDER / "prometheus" / "alerts.yml").read_text()
RECORDED = set(re.findall(r"- record: (\S+)", RULES))

# Top level key -> type; every dashboard must have them all, and no others.
DASHBOARD = {"uid": str, "title": str, "tags": list, "schemaVersion": int, "version": int, "editable": bool,
             "graphTooltip": int, "timezone": str, "refresh": str, "time": dict, "timepicker": dict, "links": list,
             "annotations": dict, "templating": dict, "fiscalYearStartMonth": int, "liveNow": bool, "weekStart": str,
             "panels": list}
PANEL = {"id": int, "type": str, "title": str, "description": str, "datasource": dict, "gridPos": dict, "targets": list,
         "options": dict, "transformations": list, "fieldConfig": dict}
ROW = {"id": int, "type": str, "title": str, "collapsed": bool, "panels": list, "gridPos": dict}
KINDS = {"row", "timeseries", "stat", "heatmap", "table"}
UNITS = {"short", "s", "bytes", "Bps", "cps", "percentunit"}


def dashboards():
    return [(path, json.loads(path.read_text())) for path in FILES]


def panels():
    return [(f"{path.name}, {panel['title']}", panel) for path, board in dashboards() for panel in board["panels"]]


def metrics_of(expression):
    without_labels = re.sub(r"\{[^}]*\}", "", expression)
    return {re.sub(r"_(bucket|sum|count)$", "", name) if re.sub(r"_(bucket|sum|count)$", "", name) in METRICS else name
            for name in re.findall(r"\bposeidon[_:][\w:]+", without_labels)}


class Files(unittest.TestCase):
    def test_are_what_the_generator_writes(self):
        check = subprocess.run([sys.executable, "-B", FOLDER / "generate.py", "--check"], capture_output=True, text=True,
                               check=False)
        self.assertEqual(check.returncode, 0, check.stderr)

    def test_are_five_with_names_of_their_own(self):
        self.assertEqual({path.stem for path in FILES}, {"cluster", "layers", "worker", "servers", "checkpoints"})
        for key in ("uid", "title"):
            self.assertEqual(len({board[key] for _, board in dashboards()}), 5)


class Structure(unittest.TestCase):
    def has_exactly(self, where, value, keys):
        self.assertEqual(set(value), set(keys), where)
        for key, kind in keys.items():
            self.assertIsInstance(value[key], kind, f"{where}: {key}")

    def test_dashboards_and_panels_have_their_parts(self):
        for path, board in dashboards():
            self.has_exactly(path.name, board, DASHBOARD)
            self.assertLessEqual(len(board["uid"]), 40)
        for where, panel in panels():
            self.assertIn(panel["type"], KINDS, where)
            self.has_exactly(where, panel, ROW if panel["type"] == "row" else PANEL)
            if panel["type"] == "row":
                continue
            self.assertIn(panel["fieldConfig"]["defaults"]["unit"], UNITS, where)
            self.assertTrue(panel["targets"], where)
            references = [target["refId"] for target in panel["targets"]]
            self.assertEqual(len(references), len(set(references)), where)

    def test_figures_are_of_now_and_states_are_words(self):
        """A range would show every state of the window; by itself one value is shown without its name."""
        figures = {where: panel for where, panel in panels() if panel["type"] == "stat"}
        self.assertGreater(len(figures), 10)
        for where, panel in figures.items():
            for target in panel["targets"]:
                self.assertEqual((target["instant"], target["range"]), (True, False), where)
        by_name = {where for where, panel in figures.items() if panel["options"]["textMode"] == "name"}
        self.assertEqual(by_name, {"cluster.json, State", "cluster.json, Job"})

    def test_panels_have_ids_and_places_of_their_own(self):
        for path, board in dashboards():
            ids = [panel["id"] for panel in board["panels"]]
            self.assertEqual(len(ids), len(set(ids)), path.name)
            taken = set()
            for panel in board["panels"]:
                place = panel["gridPos"]
                self.assertEqual(set(place), {"x", "y", "w", "h"})
                self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
                cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                         for y in range(place["y"], place["y"] + place["h"])}
                self.assertFalse(cells & taken, f"{path.name}: {panel['title']} lies on another panel")
                taken |= cells

    def test_the_datasource_is_a_variable(self):
        for path, board in dashboards():
            variables = board["templating"]["list"]
            self.assertEqual((variables[0]["name"], variables[0]["type"], variables[0]["query"]),
                             ("datasource", "datasource", "prometheus"), path.name)
            names = [variable["name"] for variable in variables]
            self.assertEqual(len(names), len(set(names)))
            text = path.read_text()
            used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"}
            self.assertEqual(used, set(names), f"{path.name}: variables used and declared")
        for where, panel in panels():
            for datasource in [panel.get("datasource"), *(target["datasource"] for target in panel.get("targets", []))]:
                if panel["type"] != "row":
                    self.assertEqual(datasource, {"type": "prometheus", "uid": "${datasource}"}, where)


class Queries(unittest.TestCase):
    def test_ask_for_metrics_that_there_are(self):
        self.assertGreater(len(METRICS), 60)
        for where, panel in panels():
            for target in panel.get("targets", []):
                names = metrics_of(target["expr"])
                self.assertTrue(names or "up{" in target["expr"], where)
                self.assertLessEqual(names, METRICS | RECORDED, where)

    def test_show_every_metric_somewhere(self):
        """A metric that no dashboard and no alert shows helps nobody; those that only say what else is shown are named."""
        shown = set().union(*(metrics_of(target["expr"]) for _, panel in panels() for target in panel.get("targets", [])))
        shown |= metrics_of(RULES)
        self.assertEqual(METRICS - shown, {"poseidon_build_info", "poseidon_iterations_total",
                                           "poseidon_process_start_time_seconds"} - shown)


class Alerts(unittest.TestCase):
    def blocks(self):
        return re.findall(r"- alert: (\w+)\n(.*?)(?=\n +- alert: |\n\n|\Z)", RULES, re.DOTALL)

    def test_say_how_bad_who_and_what_to_do(self):
        self.assertGreaterEqual(len(self.blocks()), 15)
        for name, body in self.blocks():
            self.assertRegex(body, r"\n +for: \d+[sm]\n", name)
            self.assertRegex(body, r"\n +labels: \{severity: (warning|critical)\}\n", name)
            summary = re.search(r'\n +summary: "(.*)"', body)
            self.assertIsNotNone(summary, name)
            self.assertRegex(summary.group(1), r"\{\{ \$labels\.(instance|address) \}\}", f"{name} names no node")
            self.assertRegex(summary.group(1), r"[:;,] \S", f"{name} has no remedy")

    def test_ask_for_metrics_that_there_are(self):
        self.assertLessEqual(metrics_of(RULES), METRICS | RECORDED)

    def test_each_is_tried(self):
        tried = set(re.findall(r"alertname: (\w+)", (FOLDER / "prometheus" / "alerts_test.yml").read_text()))
        self.assertEqual(tried, {name for name, _ in self.blocks()})


if __name__ == "__main__":
    unittest.main(verbosity=2)
