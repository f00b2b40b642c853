// The status page: fetches api/v1/status again and again and shows it. Names of jobs, nodes and layers come from
// others: they only ever become text nodes, never markup.
"use strict";

const POLL_MS = 2000;
const TIMEOUT_MS = 10000;
const SHOWN = {workers: 16, layers: 20, servers: 8, events: 30};  // until somebody asks for more
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
const expanded = {workers: false, layers: false, servers: false, events: false};
let current = null;   // the last status
let etag = "";
let answeredAt = 0;   // ms, when the coordinator last answered
let polling = false;

// ---- numbers as text ----

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const count = (value) => isNumber(value) ? Math.round(value).toLocaleString("en") : "-";
const measure = (value) => isNumber(value) ? value.toPrecision(4) : "-";
const percent = (value) => isNumber(value) ? `${(value * 100).toFixed(value < 0.0995 ? 1 : 0)} %` : "-";

function scaled(value, units) {
  if (!isNumber(value)) return "-";
  let unit = 0;
  while (value >= 999.5 && unit + 1 < units.length) {
    value /= 1000;
    unit += 1;
  }
  return `${value >= 99.5 || unit === 0 ? Math.round(value) : value.toPrecision(3)} ${units[unit]}`;
}
const rate = (value) => scaled(value, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);

function duration(seconds) {
  if (!isNumber(seconds) || seconds < 0) return "-";
  const two = (n) => String(n).padStart(2, "0");
  const all = Math.round(seconds);
  const hours = Math.floor(all / 3600), minutes = Math.floor(all / 60) % 60;
  return hours > 0 ? `${hours}:${two(minutes)}:${two(all % 60)}` : `${minutes}:${two(all % 60)}`;
}

function seconds(value) {
  if (!isNumber(value)) return "-";
  return value >= 1 ? `${value.toPrecision(3)} s` : `${(value * 1000).toPrecision(3)} ms`;
}

// ---- elements ----

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function drawn(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function fill(className, share) {
  const node = element("span", `fill ${className}`);
  node.style.width = `${Math.min(Math.max(isNumber(share) ? share : 0, 0), 1) * 100}%`;
  return node;
}

function bar(parts) {  // [[class, share], ...]
  const node = element("span", "bar");
  node.append(...parts.map(([className, share]) => fill(className, share)));
  return node;
}

function labelled(bars, text, className = "label") {
  const node = element("div", "bars");
  node.append(bars, element("span", className, text));
  return node;
}

function cell(content, className) {
  const node = element("td", className);
  if (content instanceof Node) node.append(content);
  else node.textContent = content;
  return node;
}

function row(cells, name) {
  const node = element("tr");
  node.dataset.name = name;
  node.append(...cells);
  return node;
}

const BAD = new Set(["lost", "away", "failed"]);
const GOOD = new Set(["running", "done", "finished", "ready"]);

function stateBadge(state) {
  const kind = BAD.has(state) ? " bad" : GOOD.has(state) ? " good" : "";
  return element("span", `state${kind}`, state);
}

/// The first of `items`, or all once somebody asked; and the button that asks.
function limited(what, items) {
  const button = byId(`${what}-more`);
  const limit = SHOWN[what];
  button.hidden = items.length <= limit;
  button.textContent = expanded[what] ? `show ${limit}` : `show all ${count(items.length)}`;
  return expanded[what] ? items : items.slice(0, limit);
}

// ---- parts of the page ----

function showHead(status) {
  const title = status.job ? status.job_id : status.message ? "no job" : "no job yet";
  document.title = status.job ? `${status.state} - ${status.job} - Poseidon` : "Poseidon";
  byId("job").textContent = title;
  byId("state").replaceWith(Object.assign(stateBadge(status.state), {id: "state"}));
  byId("message").textContent = status.message;
  byId("message").hidden = !status.message;
  byId("version").textContent = `Poseidon ${status.version}`;
}

function showSummary(status) {
  byId("summary").hidden = !status.job;
  byId("progress").value = status.iterations > 0 ? status.iteration / status.iterations : 0;
  byId("progress-text").textContent = `iteration ${count(status.iteration)} of ${count(status.iterations)}`;
  const figures = [
    ["Loss", measure(status.loss)],
    ["Images/s", count(status.images_per_s)],
    ["Training", duration(status.training_seconds)],
    [status.predicted_iteration_seconds === null ? "Iteration" : "Iteration, predicted / measured",
     times({predicted: status.predicted_iteration_seconds, measured: status.measured_iteration_seconds}, (s) => s)],
    ["Test accuracy", isNumber(status.test_accuracy) ? `${percent(status.test_accuracy)} after ${count(status.tested_iteration)}` : "-"],
    ["Epoch", count(status.epoch)],
    ["Messages refused", count(status.refused.reduce((sum, one) => sum + one.count, 0))],
  ];
  const long = [["Plan", status.plan_basis], ["A better plan", status.recommendation], ["Run directory", status.run_directory]];
  byId("figures").replaceChildren(
      ...figures.map((pair) => figure(pair, "")), ...long.filter((pair) => pair[1]).map((pair) => figure(pair, "long")));
}

function figure([name, value], className) {
  const node = element("div", className);
  node.append(element("dt", "", name), element("dd", "", value));
  return node;
}

function niceStep(range, steps) {
  const raw = range / steps, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
}

/// Numbers on the axes: as many digits as tell neighbours apart.
const tick = (value, step) => step >= 1 ? count(value) : value.toFixed(Math.min(Math.max(Math.ceil(-Math.log10(step)), 0), 12));

function showLoss(status) {
  const points = status.loss_curve, tests = status.tests;
  const svg = byId("curve");
  svg.replaceChildren();
  byId("loss").parentElement.hidden = points.length === 0;
  if (points.length === 0) return;
  const left = 52, right = Math.max(svg.clientWidth, 200) - 10, top = 8, bottom = 192;
  const end = (point) => point.iteration + point.iterations - 1;
  const first = points[0].iteration, last = Math.max(end(points[points.length - 1]), first + 1);
  let low = Math.min(...points.map((p) => p.min), ...tests.map((t) => t.loss));
  let high = Math.max(...points.map((p) => p.max), ...tests.map((t) => t.loss));
  if (high - low < 1e-9 * Math.max(Math.abs(high), 1e-9)) {
    low -= Math.abs(low) * 0.01 || 1;
    high += Math.abs(high) * 0.01 || 1;
  }
  const x = (iteration) => left + (right - left) * (iteration - first) / (last - first);
  const y = (loss) => bottom - (bottom - top) * (loss - low) / (high - low);
  const place = (px, py) => `${px.toFixed(1)},${py.toFixed(1)}`;

  const stepY = niceStep(high - low, 4);
  for (let value = Math.ceil(low / stepY) * stepY; value <= high; value += stepY) {
    svg.append(drawn("line", {class: "grid", x1: left, x2: right, y1: y(value), y2: y(value)}),
               drawn("text", {x: left - 6, y: y(value) + 4, "text-anchor": "end"}, tick(value, stepY)));
  }
  const stepX = Math.max(niceStep(last - first, (right - left) / 110), 1);
  for (let value = Math.ceil(first / stepX) * stepX; value <= last; value += stepX) {
    svg.append(drawn("text", {x: x(value), y: bottom + 18, "text-anchor": x(value) > right - 30 ? "end" : "middle"}, count(value)));
  }
  const middle = (point) => x((point.iteration + end(point)) / 2);
  svg.append(
      drawn("polygon", {class: "band", points: [...points.map((p) => place(middle(p), y(p.max))),
                                                ...points.map((p) => place(middle(p), y(p.min))).reverse()].join(" ")}),
      drawn("polyline", {class: "mean", points: points.map((p) => place(middle(p), y(p.loss))).join(" ")}));
  for (const test of tests) {
    if (test.iteration < first) continue;
    const dot = drawn("circle", {class: "test", cx: x(Math.min(test.iteration, last)), cy: y(test.loss), r: 2.6});
    dot.append(drawn("title", {}, `test after ${count(test.iteration)}: loss ${measure(test.loss)}, accuracy ${percent(test.accuracy)}`));
    svg.append(dot);
  }
  const newest = points[points.length - 1];
  byId("loss-caption").textContent =
      `${count(points.length)} points of ${newest.iterations > 1 ? "several iterations each: mean, least and greatest" : "one iteration each"}` +
      `; the last is ${measure(newest.loss)} at ${count(end(newest))}${tests.length > 0 ? "; dots are tests" : ""}`;
}

const isIll = (node) => BAD.has(node.state);

function states(nodes) {
  const counts = new Map();
  for (const node of nodes) counts.set(node.state, (counts.get(node.state) || 0) + 1);
  return [...counts].map(([state, number]) => `${number} ${state}`).join(", ") || "none has joined";
}

const rank = (node) => node.rank < 0 ? "-" : String(node.rank);
const place = (node) => (node.address || "-") + (node.note ? `: ${node.note}` : "");

function showWorkers(status) {
  byId("workers-note").textContent = states(status.workers);
  const sorted = [...status.workers].sort((a, b) => isIll(b) - isIll(a) || (b.compute_share ?? -1) - (a.compute_share ?? -1) || a.rank - b.rank);
  byId("workers").tBodies[0].replaceChildren(...limited("workers", sorted).map((worker) => {
    const shares = [["compute", worker.compute_share], ["stall", worker.stall_share], ["data", worker.data_stall_share]];
    const text = shares.map(([, share]) => isNumber(share) ? `${Math.round(share * 100)}` : "-").join(" / ");
    return row([cell(rank(worker), "number"), cell(stateBadge(worker.state)), cell(count(worker.images_per_s), "number"),
                cell(labelled(bar(shares), `${text} %`)), cell(worker.device || "-", "text"), cell(place(worker), "text")],
               rank(worker));
  }));
}

function showServers(status) {
  byId("servers-note").textContent = states(status.servers);
  const owned = new Map();
  for (const layer of status.layers) {
    for (const [server, chunks] of Object.entries(layer.chunks)) owned.set(server, (owned.get(server) || 0) + chunks);
  }
  const sorted = [...status.servers].sort((a, b) => isIll(b) - isIll(a) || a.rank - b.rank);
  byId("servers").tBodies[0].replaceChildren(...limited("servers", sorted).map((server) => row(
      [cell(rank(server), "number"), cell(stateBadge(server.state)), cell(count(owned.get(rank(server))), "number"),
       cell(place(server), "text"), cell(server.device || "-", "text")],
      rank(server))));
}

const traffic = (layer) => (layer.sent_bytes_per_s || 0) + (layer.received_bytes_per_s || 0);
const ORDERS = {
  traffic: (a, b) => traffic(b) - traffic(a),
  stall: (a, b) => (b.stall_share || 0) - (a.stall_share || 0),
  forward: () => 0,
};

/// "12 on 0-3, 7": how many chunks, and the servers that own them.
function placement(layer) {
  const servers = Object.keys(layer.chunks).map(Number).sort((a, b) => a - b);
  if (servers.length === 0) return "-";
  const ranges = [];
  for (const server of servers) {
    const last = ranges[ranges.length - 1];
    if (last && last[1] === server - 1) last[1] = server;
    else ranges.push([server, server]);
  }
  const all = Object.values(layer.chunks).reduce((sum, chunks) => sum + chunks, 0);
  return `${count(all)} on ${ranges.map(([from, to]) => from === to ? from : `${from}\u2011${to}`).join(", ")}`;
}

/// Predicted against measured where the job was calibrated, else what was measured.
/// A line breaks between the two.
function times(layer, of) {
  const text = (figures) => figures ? seconds(of(figures)).replace(" ", "\u00a0") : "-";
  return layer.predicted ? `${text(layer.predicted)}\u00a0/ ${text(layer.measured)}` : text(layer.measured);
}

function showLayers(status) {
  const wanted = byId("layer-search").value.trim().toLowerCase();
  const found = status.layers.filter((layer) => layer.name.toLowerCase().includes(wanted) || layer.scheme === wanted)
                    .sort(ORDERS[byId("layer-order").value]);
  const all = status.layers.length;
  byId("layers-note").textContent = all === 0 ? "no plan yet" : wanted ? `${count(found.length)} of ${count(all)}` : count(all);
  const widest = Math.max(...status.layers.map((layer) => Math.max(layer.sent_bytes_per_s || 0, layer.received_bytes_per_s || 0)), 1);
  const calibrated = status.layers.some((layer) => layer.predicted);
  for (const words of document.querySelectorAll("#layers .both")) words.hidden = !calibrated;
  byId("layers").tBodies[0].replaceChildren(...limited("layers", found).map((layer) => {
    const pair = element("span", "pair");
    pair.append(bar([["sent", layer.sent_bytes_per_s / widest]]), bar([["received", layer.received_bytes_per_s / widest]]));
    return row([cell(layer.name, "text"), cell(layer.scheme), cell(layer.reason, "why"), cell(count(layer.parameters), "number"),
                cell(placement(layer), "place"),
                cell(labelled(pair, `${rate(layer.sent_bytes_per_s)} / ${rate(layer.received_bytes_per_s)}`)),
                cell(labelled(bar([["stall", layer.stall_share]]), percent(layer.stall_share), "label")),
                cell(times(layer, (t) => t.forward_seconds + t.backward_seconds), "times"),
                cell(times(layer, (t) => t.sync_seconds), "times")],
               layer.name);
  }));
}

const two = (n) => String(n).padStart(2, "0");
function clockTime(ms) {
  const time = new Date(ms);
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ` +
      `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

function showEvents(status) {
  byId("events-note").textContent = status.events.length === 0 ? "nothing has happened yet" : "newest first, your time";
  byId("events").replaceChildren(...limited("events", status.events).map((event) => {
    const node = element("li", event.kind);
    node.dataset.number = event.number;
    node.append(element("time", "", clockTime(event.time_unix_ms)), element("span", "kind", event.kind), element("span", "what", event.text));
    return node;
  }));
}

function show() {
  if (current === null) return;
  for (const part of [showHead, showSummary, showLoss, showWorkers, showLayers, showServers, showEvents]) part(current);
  document.body.dataset.shown = etag;  // for tests: what of is on the page
}

// ---- polling ----

async function poll() {
  if (polling || document.hidden) return;
  polling = true;
  try {
    const answer = await fetch("api/v1/status", {
      cache: "no-store", headers: etag ? {"If-None-Match": etag} : {}, signal: AbortSignal.timeout(TIMEOUT_MS)});
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(`the coordinator answers ${answer.status}`);
      current = await answer.json();
      etag = answer.headers.get("ETag") || "";
      show();
    }
    answeredAt = Date.now();
    byId("connection").textContent = "";
  } catch {
    etag = "";  // what may not have been shown is asked for again
    const silent = answeredAt === 0 ? "" : ` for ${duration((Date.now() - answeredAt) / 1000)}; this is older`;
    byId("connection").textContent = `the coordinator does not answer${silent}`;
  } finally {
    polling = false;
  }
}

for (const what of Object.keys(expanded)) {
  byId(`${what}-more`).addEventListener("click", () => {
    expanded[what] = !expanded[what];
    show();
  });
}
byId("layer-search").addEventListener("input", show);
byId("layer-order").addEventListener("change", show);
document.addEventListener("visibilitychange", poll);
addEventListener("resize", show);
setInterval(poll, POLL_MS);
poll();
