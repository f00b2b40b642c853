"""What `poseidon trace` has written, for tests to look into."""

import collections
import json
import re

from cluster import ROOT

STAGES = dict(re.findall(r'case Stage::k(\w+):\s+return "(\w+)";', (ROOT / "common" / "probes" / "stage.h").read_text()))


class Trace:
    def __init__(self, path):
        whole = json.loads(path.read_text())
        self.about = whole["otherData"]
        self.events = whole["traceEvents"]
        self.processes = {e["pid"]: e["args"]["name"] for e in self.events if e["name"] == "process_name"}
        self.rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in self.events if e["name"] == "thread_name"}
        self.spans = [e for e in self.events if e["ph"] == "X"]
        self.begins = [e for e in self.events if e["ph"] == "b"]

    def of(self, role, stage):
        return [e for e in self.spans + self.begins if self.processes[e["pid"]].startswith(role) and e["cat"] == stage]

    def rank(self, event):
        return int(re.match(r"\w+ (\d+)", self.processes[event["pid"]]).group(1))

    def overlaps(self):
        """Whatever is on a row at the same time as something else, as text."""
        rows = collections.defaultdict(list)
        for event in self.spans:
            rows[event["pid"], event["tid"]].append(event)
        found = []
        for row, events in rows.items():
            events.sort(key=lambda e: (e["ts"], e["dur"]))
            found += [f"{self.rows[row]} of {self.processes[row[0]]}: {one} and {next_one}"
                      for one, next_one in zip(events, events[1:]) if next_one["ts"] - (one["ts"] + one["dur"]) < -0.01]
        return found
