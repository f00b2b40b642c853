"""What bench/gpu.sh sync makes of a worker's metrics and of a trace. Needs no programs."""

import argparse
import contextlib
import io
import json
import math
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import sync  # noqa: E402
from common import BenchError  # noqa: E402


def span(stage, begin, end, iteration, layer="fc", pid=1):
    return {"ph": "X", "cat": stage, "pid": pid, "ts": begin, "dur": end - begin, "args": {"iteration": iteration, "layer": layer}}


def queued(begin, end, iteration, number, layer="fc"):
    return [{"ph": "b", "cat": "queue", "pid": 1, "id": number, "ts": begin, "args": {"iteration": iteration, "layer": layer}},
            {"ph": "e", "cat": "queue", "pid": 1, "id": number, "ts": end}]


# Iteration 3 sends at 100 and has its parameters at 200; iteration 4 waits 40 for images and 20 for parameters meanwhile.
TRACE = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "worker 0 (127.0.0.1:1)"}},
         {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "server 0 (127.0.0.1:2)"}},
         span("forward", 0, 50, 3), span("backward", 50, 120, 3), *queued(100, 105, 3, "1.1"), span("send", 105, 110, 3),
         span("step", 150, 160, 3, pid=2), span("copy", 195, 200, 3),
         span("input", 120, 160, 4), span("forward", 160, 180, 4, "conv"), span("stall", 180, 200, 4), span("forward", 200, 210, 4),
         # What becomes of these the trace does not have.
         span("backward", 210, 300, 4), *queued(290, 291, 4, "1.2"), span("send", 291, 292, 4)]


class Hidden(unittest.TestCase):
    def share(self, events):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace.json"
            trace.write_text(json.dumps({"traceEvents": events}))
            return sync.hidden_share(trace)

    def test_waiting_for_images_or_parameters_is_no_computing(self):
        self.assertAlmostEqual(self.share(TRACE), (20 + 20) / 100)

    def test_a_servers_work_is_not_the_workers(self):
        self.assertAlmostEqual(self.share([*TRACE, span("forward", 120, 160, 4, pid=2)]), 0.4)

    def test_layers_that_travel_together_count_once(self):
        self.assertAlmostEqual(self.share([*TRACE, span("send", 110, 120, 3, "conv"), span("copy", 170, 180, 3, "conv")]), 0.4)

    def test_a_trace_without_anything_under_way_is_told(self):
        for events in ([], TRACE[:2], [event for event in TRACE if event.get("args", {}).get("iteration") != 4]):
            with self.assertRaisesRegex(BenchError, "nothing under way"):
                self.share(events)


def page(count, seconds, **stages):
    return "".join([f"poseidon_iteration_seconds_count {count}\n", f"poseidon_iteration_seconds_sum {seconds}\n",
                    'poseidon_stage_seconds_bucket{stage="stall",le="1"} 5\n',
                    *(f'poseidon_stage_seconds_sum{{stage="{name}"}} {value}\n' for name, value in stages.items())])


class Metrics(unittest.TestCase):
    def test_warming_up_is_not_in_the_figures(self):
        figures = sync.per_iteration(page(10, 100.0, stall=50.0), page(30, 104.0, stall=51.0, input=0.5))
        self.assertEqual(figures["iterations"], 20)
        self.assertAlmostEqual(figures["job_s"], 0.2)
        self.assertEqual(figures["stages_s"], {"stall": 0.05, "input": 0.025})

    def test_what_is_missing_is_told(self):
        with self.assertRaisesRegex(BenchError, "more --iterations"):
            sync.per_iteration(page(10, 1.0), page(10, 1.0))
        with self.assertRaisesRegex(BenchError, "no poseidon_iteration_seconds_count"):
            sync.per_iteration("", page(10, 1.0))


class FailedTrace(unittest.TestCase):
    def take(self, is_over):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
            programs = pathlib.Path(folder)
            (programs / "poseidon").write_text("#!/bin/sh\necho no such thing >&2\nexit 1\n")
            (programs / "poseidon").chmod(0o755)
            share = sync.take_trace("127.0.0.1:1", programs / "trace.json", lambda: is_over, argparse.Namespace(programs=programs))
        return share, said.getvalue()

    def test_is_an_error_while_the_job_runs(self):
        with self.assertRaisesRegex(BenchError, "poseidon trace failed: no such thing"):
            self.take(is_over=False)

    def test_is_told_when_the_job_was_over(self):
        share, said = self.take(is_over=True)
        self.assertTrue(math.isnan(share))
        self.assertIn("over before a trace", said)


if __name__ == "__main__":
    unittest.main()
