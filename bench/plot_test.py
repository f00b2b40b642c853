"""bench/plot.py draws what poseidon-bench-transport writes."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

PLOT = pathlib.Path(__file__).resolve().parent / "plot.py"
# As transport/report.cc writes it.
HEAD = {"date": "2026-01-01", "machine": {"cores": 2, "cpu": "a CPU", "kernel": "6.1.0-1"}, "arguments": {"rounds": 3}}
ROW = {"mib": 64, "workers": 1, "servers": 2, "chunk_bytes": 65536, "variant": "raw", "goodput_gb_s": 2.0, "goodput_ratio_to_raw": 1.0,
       "worker_cpu_s_per_gb": 0.25, "server_cpu_s_per_gb": 0.5, "cpu_s_per_gb": 0.75, "cpu_ratio_to_raw": 1.0}


class PlotTest(unittest.TestCase):
    def test_draws_each_variant(self):
        with tempfile.TemporaryDirectory(prefix="poseidon-bench-") as name:
            folder = pathlib.Path(name)
            rows = [ROW, {**ROW, "variant": "sockets", "goodput_gb_s": 1.0, "goodput_ratio_to_raw": 0.5}]
            (folder / "in.json").write_text(json.dumps({**HEAD, "rows": rows}))
            done = subprocess.run([sys.executable, "-B", PLOT, folder / "in.json", folder / "out.svg"], capture_output=True, text=True,
                                  timeout=60, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            texts = "".join(ElementTree.parse(folder / "out.svg").getroot().itertext())
        for word in ("1 worker, 2 servers, chunks of 64 KiB", "raw", "sockets", "(0.50x)"):
            self.assertIn(word, texts)

    def test_names_a_file_that_is_none(self):
        with tempfile.TemporaryDirectory(prefix="poseidon-bench-") as name:
            (pathlib.Path(name) / "in.json").write_text("{}")
            done = subprocess.run([sys.executable, "-B", PLOT, f"{name}/in.json", f"{name}/out.svg"], capture_output=True, text=True,
                                  timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("in.json is not what poseidon-bench-transport writes", done.stderr)


if __name__ == "__main__":
    unittest.main()
