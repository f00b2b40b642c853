#!/usr/bin/env python3
"""Writes the Grafana dashboards (grafana/dashboards/*.json) from what this file says of them.

    dashboards/generate.py           write them
    dashboards/generate.py --check   say whether the files are what this would write (a test does)

Change a dashboard here, or in Grafana and then here: the JSON is not edited by hand. Standard library only.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "grafana" / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24  # of Grafana's grid
RATE = "$__rate_interval"
COMPUTING = 'stage=~"input|forward|backward|stall|rebuild|test"'  # on the trainer's thread; other stages overlap with them


def query(expression, legend="", instant=False, table=False, heatmap=False):
    target = {"datasource": DATASOURCE, "editorMode": "code", "expr": expression, "legendFormat": legend or "__auto",
              "range": not instant, "instant": instant}
    if table:
        target["format"] = "table"
    elif heatmap:
        target["format"] = "time_series"
    return target


class Panel:
    """One panel; Dashboard gives it its id and its place."""

    def __init__(self, kind, title, queries, unit="short", width=8, height=8, description="", minimum=None,
                 options=None, custom=None, thresholds=None, transformations=None, overrides=None):
        for index, target in enumerate(queries):
            target["refId"] = chr(ord("A") + index)
        defaults = {"unit": unit, "custom": custom or {}}
        if minimum is not None:
            defaults["min"] = minimum
        if thresholds:
            steps = [{"color": "green", "value": None}]
            steps += [{"color": color, "value": value} for value, color in thresholds]
            defaults["color"] = {"mode": "thresholds"}
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        self.width, self.height = width, height
        self.body = {"type": kind, "title": title, "description": description, "datasource": DATASOURCE,
                     "targets": queries, "options": options or {}, "transformations": transformations or [],
                     "fieldConfig": {"defaults": defaults, "overrides": overrides or []}}


def lines(title, *queries, unit="short", stacked=False, minimum=0, **more):
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if stacked else 5, "showPoints": "never",
              "spanNulls": False, "stacking": {"mode": "normal" if stacked else "none", "group": "A"}}
    options = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
               "tooltip": {"mode": "multi", "sort": "desc"}}
    return Panel("timeseries", title, list(queries), unit, custom=custom, options=options, minimum=minimum, **more)


def figure(title, expression, unit="short", width=4, height=4, legend="", thresholds=None, shows_name=False, **more):
    """What is so now, not within the window. `shows_name`: the legend of what is 1, and not the 1."""
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
               "textMode": "name" if shows_name else "auto",
               "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
               "wideLayout": True, "showPercentChange": False, "percentChangeColorMode": "standard"}
    return Panel("stat", title, [query(expression, legend, instant=True)], unit, width, height, options=options,
                 thresholds=thresholds, **more)


def by_layer(title, expression, unit, **more):
    """A row per layer, time to the right, colour for the value."""
    options = {"calculate": False, "cellGap": 1, "yAxis": {"axisPlacement": "left", "reverse": True},
               "color": {"mode": "scheme", "scheme": "Turbo", "steps": 64, "fill": "dark-orange", "scale": "exponential",
                         "exponent": 0.5, "reverse": False},
               "cellValues": {"unit": unit}, "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
               "legend": {"show": True}, "filterValues": {"le": 1e-9}, "rowsFrame": {"layout": "auto"},
               "showValue": "never", "exemplars": {"color": "rgba(255,0,255,0.7)"}}
    return Panel("heatmap", title, [query(expression, "{{layer}}", heatmap=True)], unit, options=options, **more)


def table(title, columns, key, sort_by, only_labels=False, **more):
    """`columns`: (title, expression, unit); joined by the label `key`. `only_labels`: the value says nothing."""
    queries = [query(expression, instant=True, table=True) for _, expression, _ in columns]
    names = {"Value" if len(columns) == 1 else f"Value #{chr(ord('A') + i)}": title
             for i, (title, _, _) in enumerate(columns)}
    overrides = [{"matcher": {"id": "byName", "options": title}, "properties": [{"id": "unit", "value": unit}]}
                 for title, _, unit in columns]
    transformations = [{"id": "merge", "options": {}},
                       {"id": "organize", "options": {"excludeByName": {"Time": True, **({"Value": True} if only_labels else {})},
                                                      "renameByName": names,
                                                      "indexByName": {key: 0}}}]
    options = {"frameIndex": 0, "showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": sort_by, "desc": True}],
               "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": []}}
    return Panel("table", title, queries, options=options, custom={"align": "auto", "inspect": False},
                 transformations=transformations, overrides=overrides, **more)


def choice(name, label, values, many=True):
    return {"name": name, "label": label, "type": "query", "datasource": DATASOURCE, "query": values,
             "refresh": 2, "sort": 3, "regex": "", "hide": 0,
            "includeAll": many, "multi": many, "skipUrlSync": False, "options": [],
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if many else {"text": "", "value": ""}}


class Dashboard:
    def __init__(self, name, title, variables=()):
        datasource = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus",
                      "regex": "", "hide": 0, "refresh": 1, "includeAll": False, "multi": False, "skipUrlSync": False,
                      "options": [], "current": {"text": "", "value": ""}}
        self.name, self.panels = name, []
        self.x = self.y = self.row_height = 0
        link = {"title": "Poseidon", "type": "dashboards", "tags": ["poseidon"], "asDropdown": True, "icon": "external link",
                "includeVars": False, "keepTime": True, "targetBlank": False, "tooltip": "", "url": ""}
        self.body = {"uid": f"poseidon-{name}", "title": f"Poseidon / {title}", "tags": ["poseidon"],
                     "schemaVersion": 38, "version": 1, "editable": True, "graphTooltip": 1, "timezone": "browser",
                     "refresh": "10s", "time": {"from": "now-30m", "to": "now"}, "timepicker": {}, "links": [link],
                     "annotations": {"list": []}, "templating": {"list": [datasource, *variables]},
                     "fiscalYearStartMonth": 0, "liveNow": False, "weekStart": "", "panels": self.panels}

    def _next_line(self):
        self.x, self.y, self.row_height = 0, self.y + self.row_height, 0

    def row(self, title, *panels):
        self._next_line()
        self.panels.append({"id": len(self.panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                            "gridPos": {"x": 0, "y": self.y, "w": WIDTH, "h": 1}})
        self.y += 1
        for panel in panels:
            if self.x + panel.width > WIDTH:
                self._next_line()
            place = {"x": self.x, "y": self.y, "w": panel.width, "h": panel.height}
            self.panels.append({"id": len(self.panels) + 1, "gridPos": place, **panel.body})
            self.x += panel.width
            self.row_height = max(self.row_height, panel.height)
        return self

    def text(self):
        return json.dumps(self.body, indent=2) + "\n"


def rate(metric, by="", labels="", window=RATE):
    inner = f"rate({metric}{labels and '{' + labels + '}'}[{window}])"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def mean(histogram, by, labels=""):
    return f"{rate(histogram + '_sum', by, labels)} / {rate(histogram + '_count', by, labels)}"


def quantile(q, histogram, by="", labels=""):
    return f"histogram_quantile({q}, {rate(histogram + '_bucket', 'le' + (by and ', ' + by), labels)})"


def cluster():
    state = 'poseidon_job_state == 1'
    return Dashboard("cluster", "Cluster").row(
        "The job",
        figure("State", state, legend="{{state}}", width=3, shows_name=True, description="Of the job; idle where there is none"),
        figure("Job", "poseidon_job_info", legend="{{id}}", width=4, shows_name=True),
        figure("Done", "poseidon_job_iteration / poseidon_job_iterations", "percentunit", width=3),
        figure("Images per second", "poseidon_images_per_second", width=3),
        figure("Loss", "poseidon_loss", width=3),
        figure("Test accuracy", "poseidon_test_accuracy", "percentunit", width=3),
        figure("Epoch", "poseidon_epoch", width=2, description="Grows with every recovery and every change of members"),
        figure("Checkpoint's age", "time() - poseidon_checkpoint_time_seconds", "s", width=3,
               thresholds=[(1800, "orange"), (3600, "red")]),
        lines("Images per second", query("poseidon_images_per_second", "all"),
              query(rate("poseidon_images_total", "instance"), "{{instance}}"), width=12,
              description="Of the whole job, and of each worker"),
        lines("Loss", query("poseidon_loss", "training"), query("poseidon_test_loss", "test"),
              query("poseidon_worker_loss", "{{instance}}"), width=12, minimum=None),
        lines("Iteration, mean", query(mean("poseidon_iteration_seconds", "instance"), "{{instance}}"), unit="s"),
        lines("Iteration, of all workers", query(quantile(0.5, "poseidon_iteration_seconds"), "median"),
              query(quantile(0.95, "poseidon_iteration_seconds"), "95 %"),
              query("poseidon_predicted_iteration_seconds", "as planned"), unit="s",
              description="As planned: what the plan in force predicts; there is none where a job was not calibrated"),
        lines("Where the workers' time goes", query(rate("poseidon_stage_seconds_sum", "stage", COMPUTING),
                                                    "{{stage}}"), unit="s", stacked=True,
              description="Seconds per second, all workers together"),
    ).row(
        "Who is slow",
        lines("Busy per iteration", query("poseidon:worker_busy_seconds", "{{instance}}"), unit="s",
              description="What each worker does itself in an iteration; the highest is whom the others wait for"),
        lines("Share of time waiting for parameters", query("poseidon:worker_stall_ratio", "{{instance}}"),
              unit="percentunit"),
        lines("Share of time waiting for samples", query("poseidon:worker_input_ratio", "{{instance}}"),
              unit="percentunit"),
    ).row(
        "Nodes",
        lines("Members", query("sum by (role, state) (poseidon_members) > 0", "{{role}} {{state}}"), stacked=True),
        table("Nodes", [("State", "max by (role, rank, address, state) (poseidon_node_state)", "short")], "role", "role",
              only_labels=True, width=8),
        lines("Recoveries", query("poseidon_recoveries_total", "{{reason}}"),
              query("poseidon_departures_total", "{{role}} {{how}}"), description="Since the coordinator started"),
        lines("Network, payload", query(rate("poseidon_layer_sent_bytes_total", "role"), "{{role}}s send"),
              query(rate("poseidon_layer_received_bytes_total", "role"), "{{role}}s receive"), unit="Bps", width=12),
        lines("CPU", query(rate("poseidon_process_cpu_seconds_total", "daemon, instance"), "{{daemon}} {{instance}}"),
              width=12, description="Cores in use"),
    )


def layers():
    worker = 'instance=~"$instance"'
    sent = rate("poseidon_layer_sent_bytes_total", "layer", f'role="worker", {worker}')
    received = rate("poseidon_layer_received_bytes_total", "layer", f'role="worker", {worker}')
    stall = rate("poseidon_layer_stall_seconds_total", "layer", worker)
    iterations = f"scalar({rate('poseidon_iteration_seconds_count', '', worker)})"
    passes_s = (f"scalar(sum(rate(poseidon_iteration_seconds_sum{{{worker}}}[{RATE}])"
                f" or rate(poseidon_stage_seconds_sum{{stage=\"test\", {worker}}}[{RATE}])))")
    columns = [
        ("Sent", rate("poseidon_layer_sent_bytes_total", "layer, scheme", f'role="worker", {worker}'), "Bps"),
        ("Received", rate("poseidon_layer_received_bytes_total", "layer, scheme", f'role="worker", {worker}'), "Bps"),
        ("Stall share", f"{stall} / {passes_s}", "percentunit"),
        ("Synchronisation", mean("poseidon_layer_sync_seconds", "layer", worker), "s"),
        ("95 %", quantile(0.95, "poseidon_layer_sync_seconds", "layer", worker), "s"),
        ("Forward", f"{rate('poseidon_layer_forward_seconds_total', 'layer', worker)} / {iterations}", "s"),
        ("Backward", f"{rate('poseidon_layer_backward_seconds_total', 'layer', worker)} / {iterations}", "s"),
    ]
    return Dashboard("layers", "Layers", [
        choice("instance", "Workers", "label_values(poseidon_images_total, instance)")]).row(
        "Bandwidth and stalls over time",
        by_layer("Sent per layer", sent, "Bps", width=12, height=12),
        by_layer("Received per layer", received, "Bps", width=12, height=12),
        by_layer("Standing still per layer", stall, "s", width=12, height=12,
                 description="Seconds per second in which the engine waited for this layer's parameters"),
        by_layer("Synchronisation per layer", mean("poseidon_layer_sync_seconds", "layer", worker), "s", width=12, height=12,
                 description="From the gradient's being ready to the new parameters' being there"),
    ).row(
        "Now",
        table("Layers", columns, "layer", "Sent", width=24, height=14,
              description="Forward and backward are of one iteration of one worker"),
    ).row(
        "By scheme",
        lines("Sent", query(rate("poseidon_layer_sent_bytes_total", "scheme, role"), "{{scheme}} {{role}}s"), unit="Bps",
              stacked=True, width=12),
        lines("The ten layers that are waited for most", query(f"topk(10, {stall})", "{{layer}}"), unit="s", width=12),
    )


def worker():
    one = 'instance="$instance"'  # no expression: of a single choice Grafana escapes nothing ("[fd00::3]:9462")
    return Dashboard("worker", "Worker", [
        choice("instance", "Worker", "label_values(poseidon_images_total, instance)", many=False)]).row(
        "Its iterations",
        figure("Rank", f"poseidon_node_rank{{{one}}}"),
        figure("Iteration", f"poseidon_worker_iteration{{{one}}}"),
        figure("Images per second", rate("poseidon_images_total", "instance", one)),
        figure("Loss", f"poseidon_worker_loss{{{one}}}"),
        figure("Batches ready", f"poseidon_data_ready_batches{{{one}}}"),
        figure("Resident memory", f"poseidon_process_resident_memory_bytes{{{one}}}", "bytes"),
        lines("Where its time goes, per iteration",
              query(f"{rate('poseidon_stage_seconds_sum', 'stage', f'{one}, {COMPUTING}')} / "
                    f"scalar({rate('poseidon_iteration_seconds_count', '', one)})", "{{stage}}"), unit="s", stacked=True,
              width=12),
        lines("Iteration", query(mean("poseidon_iteration_seconds", "instance", one), "mean"),
              query(quantile(0.5, "poseidon_iteration_seconds", "", one), "median"),
              query(quantile(0.95, "poseidon_iteration_seconds", "", one), "95 %"), unit="s", width=12),
        lines("Stages, 95 %", query(quantile(0.95, "poseidon_stage_seconds", "stage", one), "{{stage}}"), unit="s"),
        lines("Waiting for samples", query(rate("poseidon_data_stall_seconds_total", "instance", one), "seconds per second"),
              query(f"poseidon_data_ready_batches{{{one}}}", "batches ready"),
              query(f"poseidon_data_corrupt_samples_total{{{one}}}", "corrupt samples")),
        lines("CPU", query(rate("poseidon_process_cpu_seconds_total", "instance", one), "cores")),
    ).row(
        "Its GPU (empty without one)",
        lines("Memory", query(f"poseidon_gpu_memory_used_bytes{{{one}}}", "in use"),
              query(f"poseidon_gpu_memory_bytes{{{one}}}", "all"), unit="bytes", width=6),
        lines("Busy", query(f"poseidon_gpu_utilization_ratio{{{one}}}", "running kernels"), unit="percentunit", width=6),
        lines("Power", query(f"poseidon_gpu_power_watts{{{one}}}", "watts"), width=6),
        lines("Temperature", query(f"poseidon_gpu_temperature_celsius{{{one}}}", "degrees Celsius"), width=6),
    ).row(
        "Its network",
        lines("Payload", query(rate("poseidon_layer_sent_bytes_total", "scheme", one), "sent {{scheme}}"),
              query(rate("poseidon_layer_received_bytes_total", "scheme", one), "received {{scheme}}"), unit="Bps"),
        lines("Sent, by the way it took", query(rate("poseidon_transport_sent_bytes_total", "path", one), "{{path}}"),
              unit="Bps", stacked=True),
        lines("Messages that wait for their turn", query(f"poseidon_send_queue_messages{{{one}}}", "chunks and factors")),
        lines("Attempts to reach others again", query(f"poseidon_retries_total{{{one}}}", "{{peer}}")),
        lines("Refused messages", query(rate("poseidon_refused_messages_total", "reason", one), "{{reason}}"), unit="cps"),
        lines("Faults", query(f"poseidon_training_faults_total{{{one}}}", "{{fault}}")),
    )


def servers():
    some = 'instance=~"$instance"'
    return Dashboard("servers", "Servers", [
        choice("instance", "Servers", "label_values(poseidon_server_streams, instance)")]).row(
        "Gradients in, parameters out",
        lines("Payload received", query(rate("poseidon_layer_received_bytes_total", "instance", f'role="server", {some}'),
                                        "{{instance}}"), unit="Bps"),
        lines("Payload sent", query(rate("poseidon_layer_sent_bytes_total", "instance", f'role="server", {some}'),
                                    "{{instance}}"), unit="Bps"),
        lines("Sent, by the way it took", query(rate("poseidon_transport_sent_bytes_total", "instance, path", some),
                                                "{{instance}} {{path}}"), unit="Bps"),
        lines("Busy with gradients", query(rate("poseidon_stage_seconds_sum", "instance, stage", f'{some}, stage=~"sum|step"'),
                                           "{{instance}} {{stage}}"), unit="s",
              description="Seconds per second on the loop that reads, sums and steps: near 1 the server is the limit"),
        lines("One chunk, mean", query(mean("poseidon_stage_seconds", "stage", f'{some}, stage=~"sum|step"'), "{{stage}}"),
              unit="s"),
        by_layer("Sums and steps per layer", rate("poseidon_layer_aggregation_seconds_total", "layer", some), "s",
                 description="Seconds per second, all servers together"),
        lines("Chunks per second", query(rate("poseidon_stage_seconds_count", "stage", f'{some}, stage=~"sum|step"'),
                                         "{{stage}}"), unit="cps"),
        lines("Messages that wait for their turn", query(f"poseidon_send_queue_messages{{{some}}}", "{{instance}}")),
        lines("Early gradients", query(f"poseidon_server_early_gradient_bytes{{{some}}}", "{{instance}}"), unit="bytes",
              description="Of workers that are ahead of others"),
        lines("Streams", query(f"poseidon_server_streams{{{some}}}", "{{instance}}"),
              query(f"poseidon_server_paused_streams{{{some}}}", "{{instance}} held back")),
    ).row(
        "The processes",
        lines("CPU", query(rate("poseidon_process_cpu_seconds_total", "instance", f'daemon="server", {some}'), "{{instance}}"),
              description="Cores in use"),
        lines("Resident memory", query(f'poseidon_process_resident_memory_bytes{{daemon="server", {some}}}', "{{instance}}"),
              unit="bytes"),
        lines("Parameters", query(f"poseidon_shard_parameters{{{some}}}", "{{instance}}")),
        lines("Refused messages", query(rate("poseidon_refused_messages_total", "instance, reason", f'role="server", {some}'),
                                        "{{instance}} {{reason}}"), unit="cps"),
    ).row(
        "RocksDB",
        lines("Checkpoint store", query(f"poseidon_store_bytes{{{some}}}", "{{instance}}"), unit="bytes"),
        lines("Checkpoints and files", query(f"poseidon_store_snapshots{{{some}}}", "{{instance}} checkpoints"),
              query(f"poseidon_store_files{{{some}}}", "{{instance}} files")),
        lines("Memory for reading tables", query(f"poseidon_store_table_reader_bytes{{{some}}}", "{{instance}}"), unit="bytes"),
        lines("Free space", query(f"poseidon_disk_free_bytes{{{some}}}", "{{instance}}"),
              query(f"poseidon_disk_bytes{{{some}}}", "{{instance}} in all"), unit="bytes"),
        lines("Background errors", query(f"poseidon_store_background_errors{{{some}}}", "{{instance}}")),
        lines("Written for checkpoints", query(rate("poseidon_snapshot_written_bytes_total", "instance", some), "{{instance}}"),
              query(f"{rate('poseidon_store_written_bytes_total', 'instance', some)} / "
                    + rate("poseidon_stage_seconds_sum", "instance", f'{some}, stage="write"'),
                    "{{instance}}, while it writes"), unit="Bps"),
    )


def checkpoints():
    return Dashboard("checkpoints", "Checkpoints and failures").row(
        "Checkpoints",
        figure("Age", "time() - poseidon_checkpoint_time_seconds", "s", thresholds=[(1800, "orange"), (3600, "red")]),
        figure("Iterations since", "poseidon_job_iteration - poseidon_checkpoint_iteration"),
        figure("Asked for every", "poseidon_checkpoint_every_iterations"),
        figure("Kept", "poseidon_checkpoints"),
        figure("Copies missing", "poseidon_checkpoint_copies_missing", thresholds=[(1, "red")],
               description="Of those that checkpoint.replicas asks for: a server is missing"),
        figure("Size", "poseidon_checkpoint_bytes", "bytes"),
        figure("Took", "poseidon_checkpoint_duration_seconds", "s"),
        lines("Age", query("time() - poseidon_checkpoint_time_seconds", "newest committed"), unit="s", width=8),
        lines("Attempts", query("poseidon_checkpoints_total", "{{result}}"), width=8),
        lines("Parts on servers", query("poseidon_snapshots_total", "{{instance}} {{result}}"), width=8),
        lines("Writing one, mean", query(mean("poseidon_stage_seconds", "instance", 'stage="checkpoint"'), "{{instance}}"),
              unit="s", description="From its first piece until it is sealed"),
        lines("Written", query(rate("poseidon_snapshot_written_bytes_total", "instance"), "{{instance}}"), unit="Bps"),
        lines("Chunks that wait for the disk", query("poseidon_snapshot_queue_chunks", "{{instance}}")),
    ).row(
        "Failures",
        lines("Recoveries, by reason", query("poseidon_recoveries_total", "{{reason}}")),
        lines("Nodes that went", query("poseidon_departures_total", "{{role}} {{how}}")),
        lines("Jobs that ended", query("poseidon_jobs_total", "{{result}}")),
        lines("Job state", query("poseidon_job_state > 0", "{{state}}"), width=12),
        lines("Epoch", query("poseidon_epoch", "job"), query("poseidon_node_epoch", "{{instance}}"), width=12,
              description="Nodes of an older epoch are behind"),
        lines("Daemons that do not answer", query('sum by (daemon) (up{daemon=~"coordinator|server|worker"} == bool 0)',
                                                  "{{daemon}}")),
        lines("Faults of training", query("sum by (instance, fault) (poseidon_training_faults_total)", "{{instance}} {{fault}}")),
        lines("Attempts to reach others again", query("sum by (instance, peer) (poseidon_retries_total)", "{{instance}} {{peer}}")),
        lines("Refused messages", query(rate("poseidon_refused_messages_total", "role, reason"), "{{role}} {{reason}}"),
              unit="cps", width=12),
        lines("Refused connections and calls", query(rate("poseidon_refused_connections_total", "role, reason"), "{{role}} {{reason}}"),
              unit="cps", width=12),
        lines("Cut off", query("poseidon_coordinator_cut_off", "{{instance}}"), width=12,
              description="1 while the coordinator hears nobody, and so gives nobody up"),
    )


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    stale = []
    for dashboard in (cluster(), layers(), worker(), servers(), checkpoints()):
        path = FOLDER / f"{dashboard.name}.json"
        if not arguments:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(dashboard.text())
        elif not path.exists() or path.read_text() != dashboard.text():
            stale.append(str(path))
    if stale:
        sys.exit(f"not what dashboards/generate.py writes (run it): {', '.join(stale)}")


if __name__ == "__main__":
    main(sys.argv[1:])
