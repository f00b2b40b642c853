"""cost.py finds the threads that serve scrapes, and fails where there are none. Needs no programs of ours."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

COST = pathlib.Path(__file__).resolve().parent / "cost.py"
# Instead of `poseidon local`: starts one daemon that answers scrapes on a thread of this name, for a moment.
LOCAL = r'''#!{python}
import http.server, json, pathlib, subprocess, sys, threading
if sys.argv[1] == "local":
    sys.exit(subprocess.run([sys.executable, __file__, "daemon", sys.argv[sys.argv.index("--run-dir") + 1]]).returncode)
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"a page")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
def serve():
    pathlib.Path("/proc/thread-self/comm").write_text("{thread}")
    server.serve_forever()
threading.Thread(target=serve, daemon=True).start()
targets = pathlib.Path(sys.argv[2]) / "cluster" / "coordinator" / "prometheus-targets.json"
targets.parent.mkdir(parents=True)
targets.write_text(json.dumps([{{"targets": [f"127.0.0.1:{{server.server_port}}"]}}]))
threading.Event().wait(3)
'''


class CostTest(unittest.TestCase):
    def cost(self, thread):
        with tempfile.TemporaryDirectory(prefix="poseidon-cost-") as folder:
            program = pathlib.Path(folder) / "bin" / "poseidon"
            program.parent.mkdir()
            program.write_text(LOCAL.format(python=sys.executable, thread=thread))
            program.chmod(0o755)
            job = pathlib.Path(folder) / "job.json"
            job.write_text(json.dumps({"data": {}}))
            return subprocess.run([sys.executable, "-B", COST, "--rounds", "1", "--build", folder, "--job", job], capture_output=True,
                                  text=True, timeout=100, check=False)

    def test_what_serves_scrapes_is_found_by_its_name(self):
        done = self.cost("MHD-single")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("scrapes of", done.stdout)

    def test_another_name_is_an_error_and_not_nothing(self):
        done = self.cost("http")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("no thread MHD-* in any daemon", done.stderr)


if __name__ == "__main__":
    unittest.main()
