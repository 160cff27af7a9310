// The page: what the daemon says as it happens, as rows, charts and receipts. No framework, no build.
// Others' names are only ever text, never markup.
"use strict";

const $ = (id) => document.getElementById(id);

function make(tag, props = {}, ...inside) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") node.className = value;
    else if (name in node && name !== "role") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...inside);
  return node;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- How things are written

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return [bytes >= 100 || unit < 2 ? bytes.toFixed(0) : bytes.toFixed(1), units[unit]];
}
const sized = (bytes) => (bytes ? size(bytes).join("\u00a0") : "0");

function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${two(Math.floor(s / 60) % 60)}m`;
  return `${Math.floor(s / 86400)}d${two(Math.floor(s / 3600) % 24)}h`;
}
const took = (ms) => (ms < 1000 ? `${ms}\u00a0ms` : `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0)}\u00a0s`);
const many = (n, one, more = `${one}s`) => `${n}\u00a0${n === 1 ? one : more}`;
const clock = (ms, seconds = true) => new Date(ms).toLocaleTimeString([], {
  hour: "2-digit", minute: "2-digit", hour12: false, ...(seconds && { second: "2-digit" }),
});

// A dot, a word, and what the word means.
const STATES = {
  starting: ["busy", "It has not been heard yet", "half"],
  ready: ["good", "It can be used"],
  busy: ["busy", "Somebody waits for its answer"],
  superseded: ["warn", "It can be used, and the same host has started the same server again since"],
  asleep: ["rest", "Its processes are gone, and its host does not know; the next message wakes it"],
  waking: ["busy", "Its host has spoken: it is being started again", "half"],
  ending: ["off", "It is leaving"],
  survivors: ["bad", "It has ended, and some of its processes or containers have not"],
  restarting: ["warn", "It left, and is about to be started again", "half"],
  failed: ["bad", "It could not be started"],
};
const CLUES = {
  "superseded": "the same host has started it again since",
  "host-orphaned": "an ancestor of its host has died",
  "ends-closed": "its host has closed other ends of it",
  "stateless": "it keeps nothing between requests",
  "asked": "sleep was asked for",
};

function state(word) {
  const [tone, title, shape] = STATES[word] || ["off", ""];
  const node = make("span", { class: "state", title }, make("i"), make("b", {}, word));
  node.dataset.tone = tone;
  if (shape) node.dataset.shape = shape;
  return node;
}

// ---- What is known

const world = { rows: new Map(), receipts: [], points: [], survivors: 0, skew: 0, shown: 20 };
const now = () => Date.now() + world.skew;

// ---- Servers

const COLUMNS = [
  ["Server", (r) => r.server.toLowerCase()],
  ["State", (r) => r.state],
  ["Idle", (r) => -(r.quiet_since_ms ?? Infinity), true],
  ["Age", (r) => -Date.parse(r.started || 0), true],
  ["CPU", (r) => r.cpu, true],
  ["Processes", (r) => r.processes, true],
  ["Memory", (r) => r.rss_bytes, true],
  ["Held by", (r) => r.backend],
];
const order = { column: -1, down: false };
const table = $("table");
const open = new Set();
const leaving = new Set();
const bodies = new Map();
const lines = new Map();
let active = null;

for (const [at, [title, , number]] of COLUMNS.entries()) {
  const button = make("button", { type: "button" }, title);
  button.addEventListener("click", () => {
    if (order.column !== at) Object.assign(order, { column: at, down: Boolean(number) });
    else if (order.down === Boolean(number)) order.down = !order.down;
    else order.column = -1;
    for (const [n, th] of [...table.tHead.rows[0].cells].entries()) {
      if (n === order.column) th.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
    arrange();
  });
  table.tHead.rows[0].append(make("th", { scope: "col", class: number ? "n" : "" }, button));
}
table.tHead.rows[0].append(make("th", { scope: "col" }, make("span", { class: "hidden" }, "End")));

const hostKey = (row) => (row.host ? `${row.host.pid}` : "none");

// One row of the table, made once; `fill` writes what has changed.
function line(row) {
  const tr = make("tr", { class: "server", tabIndex: -1 });
  tr.dataset.key = row.key;
  const toggle = make("button", { type: "button", class: "open", tabIndex: -1 });
  const title = make("bdi");
  const part = make("span", { class: "part" });
  const why = make("span", { class: "why" });
  const cells = COLUMNS.map(([, , number], at) => {
    const td = make("td", { class: number ? "n" : "" });
    const short = { 2: "idle", 4: "cpu", 5: "proc" }[at];
    if (short) td.dataset.label = short;
    return td;
  });
  cells[0].append(make("div", { class: "name" }, toggle, title, part), why);
  const end = make("button", { type: "button", class: "end", tabIndex: -1 }, "End");
  tr.append(...cells, make("td", { class: "n" }, end));
  const more = make("tr", { class: "more", hidden: true });
  const inside = make("td", { colSpan: COLUMNS.length + 1 });
  more.append(inside);
  toggle.addEventListener("click", () => unfold(row.key));
  end.addEventListener("click", () => ask(row.key));
  tr.addEventListener("focus", () => activate(row.key));
  tr.addEventListener("dblclick", () => unfold(row.key));
  return { tr, more, inside, toggle, title, part, why, cells, end, told: null };
}

function fill(row) {
  let one = lines.get(row.key);
  if (!one) lines.set(row.key, (one = line(row)));
  const word = leaving.has(row.session) ? "ending" : row.state;
  const text = JSON.stringify(row) + word;
  if (one.told === text) return one;
  one.told = text;
  say(one.title, row.server);
  say(one.part, row.name || row.share || "");
  say(one.why, row.why || row.evidence.map((clue) => CLUES[clue] || clue).join("; "));
  one.cells[1].replaceChildren(state(word));
  const cpu = row.cpu / 10;
  say(one.cells[4], `${cpu >= 10 ? cpu.toFixed(0) : cpu.toFixed(1)}\u00a0%`);
  one.cells[4].classList.toggle("zero", row.cpu === 0);
  say(one.cells[5], String(row.processes));
  say(one.cells[6], row.processes ? sized(row.rss_bytes) : "0");
  for (const at of [5, 6]) one.cells[at].classList.toggle("zero", row.processes === 0);
  say(one.cells[7], row.backend || "\u2013");
  one.tr.classList.toggle("leaving", word === "ending");
  one.end.disabled = word === "ending";
  one.end.setAttribute("aria-label", `End ${row.server}`);
  one.toggle.setAttribute("aria-label", `Processes of ${row.server}`);
  one.toggle.setAttribute("aria-expanded", String(open.has(row.key)));
  one.more.hidden = !open.has(row.key);
  if (open.has(row.key)) one.inside.replaceChildren(...details(row));
  return one;
}

function times(row, one) {
  say(one.cells[2], row.quiet_since_ms === null ? "\u2013" : span((now() - row.quiet_since_ms) / 1000));
  one.cells[2].classList.toggle("zero", row.quiet_since_ms === null);
  say(one.cells[3], row.started ? span((now() - Date.parse(row.started)) / 1000) : "\u2013");
}

function details(row) {
  const fact = (label, value) => make("span", {}, `${label} `, make("b", {}, value));
  const facts = make("p", { class: "facts" }, fact("session", row.session));
  if (row.started) facts.append(fact("since", new Date(row.started).toLocaleString([], { hour12: false })));
  if (row.pss_bytes !== null) facts.append(fact("its share of memory", sized(row.pss_bytes)));
  if (row.share) facts.append(fact("use", row.share));
  for (const clue of row.evidence) facts.append(fact("clue", clue));
  for (const one of row.containers) facts.append(fact("container", `${one.id.slice(0, 12)} ${one.image}`));
  if (!row.tree.length) return [facts, make("p", { class: "note" }, "No processes.")];
  const list = make("ul", { class: "tree" }, make("li", { class: "top" },
    make("span", {}, "process"), make("span", { class: "n" }, "pid"), make("span", { class: "n" }, "memory"),
    make("span", { class: "n" }, "CPU time")));
  const children = Map.groupBy(row.tree, ([, ppid]) => ppid);
  const pids = new Set(row.tree.map(([pid]) => pid));
  const walk = (all, bars) => all.forEach(([pid, , command, rss, cpu], at) => {
    const last = at === all.length - 1;
    const lead = bars === null ? "" : `${bars}${last ? "\u2514\u2500 " : "\u251c\u2500 "}`;
    list.append(make("li", {},
      make("span", { class: "p" }, make("span", {}, lead), make("bdi", {}, command)),
      make("span", { class: "n" }, String(pid)), make("span", { class: "n" }, sized(rss)),
      make("span", { class: "n" }, took(cpu))));
    walk(children.get(pid) || [], bars === null ? "" : `${bars}${last ? "   " : "\u2502  "}`);
  });
  walk(row.tree.filter(([, ppid]) => !pids.has(ppid)), null);
  return [facts, list];
}

function unfold(key, wanted = !open.has(key)) {
  if (wanted) open.add(key); else open.delete(key);
  const row = world.rows.get(key);
  if (row) { lines.get(key).told = null; fill(row); }
}

function activate(key) {
  const reach = (one, index) => { one.tr.tabIndex = one.toggle.tabIndex = one.end.tabIndex = index; };
  if (lines.has(active)) reach(lines.get(active), -1);
  active = key;
  if (lines.has(key)) reach(lines.get(key), 0);
}

const fits = (row, words) => {
  const text = `${row.server} ${row.name || ""} ${row.host?.name || ""} ${row.host?.pid || ""} ${row.state} ${row.backend} ${row.session}`.toLowerCase();
  return words.every((word) => text.includes(word));
};

// Puts rows where they belong, moving only those that are elsewhere.
function arrange() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...world.rows.values()].filter((row) => fits(row, words));
  const value = order.column < 0 ? (row) => row.started : COLUMNS[order.column][1];
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    const sign = x < y ? -1 : x > y ? 1 : 0;
    return (order.down ? -sign : sign) || (a.key < b.key ? -1 : 1);
  };
  const groups = [...Map.groupBy(rows.sort(compare), hostKey).entries()];
  if (order.column < 0) groups.sort(([, a], [, b]) => (a[0].host?.name || "~").localeCompare(b[0].host?.name || "~") || (a[0].host?.pid || 0) - (b[0].host?.pid || 0));
  let before = table.tHead;
  for (const [key, inside] of groups) {
    let body = bodies.get(key);
    if (!body) {
      const th = make("th", { scope: "rowgroup", colSpan: COLUMNS.length + 1 }, make("b"), make("span"));
      bodies.set(key, (body = make("tbody", {}, make("tr", { class: "host" }, th))));
    }
    const [title, sums] = body.rows[0].cells[0].children;
    const host = inside[0].host;
    say(title, host ? host.name || "host gone" : "no host");
    const memory = inside.reduce((sum, row) => sum + row.rss_bytes, 0);
    const processes = inside.reduce((sum, row) => sum + row.processes, 0);
    say(sums, `${host ? `  pid ${host.pid}` : ""}  \u00b7  ${many(inside.length, "server")}  \u00b7  ${many(processes, "process", "processes")}  \u00b7  ${sized(memory)}`);
    if (before.nextSibling !== body) before.after(body);
    before = body;
    let above = body.rows[0];
    for (const row of inside) {
      const one = fill(row);
      times(row, one);
      if (above.nextSibling !== one.tr) above.after(one.tr, one.more);
      above = one.more;
    }
    while (above.nextSibling) above.nextSibling.remove();
  }
  while (before.nextSibling) { before.nextSibling.remove(); }
  const shown = new Set(groups.map(([key]) => key));
  for (const key of bodies.keys()) if (!shown.has(key)) bodies.delete(key);
  if (!rows.some((row) => row.key === active)) activate(rows.length ? groups[0][1][0].key : null);
  table.hidden = !rows.length;
  $("empty").hidden = world.rows.size > 0;
  $("none").hidden = !world.rows.size || rows.length > 0;
  $("filter").hidden = !world.rows.size;
}

function figures() {
  const rows = [...world.rows.values()];
  const of = (word) => rows.filter((row) => row.state === word).length;
  const hosts = new Set(rows.map(hostKey)).size;
  const rest = ["busy", "asleep", "superseded", "failed"].filter(of).map((word) => `${of(word)} ${word}`);
  const [, , processes, memory] = world.points.at(-1);
  say($("f-servers"), String(rows.length));
  say($("n-servers"), rows.length ? [many(hosts, "host"), ...rest].join(" \u00b7 ") : "none yet");
  say($("f-processes"), String(processes));
  say($("n-processes"), rows.length ? `${(processes / rows.length).toFixed(1)} for each server` : "\u00a0");
  const [number, unit] = size(memory);
  $("f-memory").replaceChildren(number, make("small", {}, unit));
  const cpu = rows.reduce((sum, row) => sum + row.cpu, 0) / 10;
  say($("n-memory"), rows.length ? `resident \u00b7 ${cpu.toFixed(cpu < 10 ? 1 : 0)} % of a CPU` : "\u00a0");
  say($("f-survivors"), String(world.survivors));
  say($("n-survivors"), world.survivors ? "could not be ended" : "nothing left behind");
  $("survivors").classList.toggle("some", world.survivors > 0);
  document.title = rows.length ? `${many(rows.length, "server")} \u00b7 Lariat` : "Lariat";
}

// ---- Receipts

function receipts(fresh) {
  const body = $("receipts").tBodies[0];
  const list = world.receipts.slice(-world.shown).reverse();
  body.replaceChildren(...list.map((receipt) => {
    const { seen, left, asked, killed } = receipt.processes;
    const how = [[left, "left"], [asked, "when asked"], [killed, "killed"]].filter(([n]) => n).map(([n, word]) => `${n} ${word}`);
    const rest = receipt.survivors.map((one) => `${one.kind} ${one.pid || ""} ${one.command}: ${one.why}`);
    const boxes = receipt.containers?.seen ? ` and ${many(receipt.containers.seen, "container")}` : "";
    const tr = make("tr", { class: rest.length ? "bad" : "" },
      make("td", {}, clock(Date.parse(receipt.ended))), make("td", {}, make("bdi", {}, receipt.server)),
      make("td", {}, receipt.reason + (receipt.swept ? " (found later)" : "")),
      make("td", { title: how.join(", ") }, `${seen}${boxes}${how.length ? `: ${how.join(", ")}` : ""}`),
      make("td", { class: "n" }, took(receipt.teardown_ms)), make("td", { class: "n" }, span(receipt.duration_ms / 1000)),
      make("td", {}, rest.length ? rest.join("; ") : make("span", { class: "gone" }, "nothing")));
    tr.title = `session ${receipt.within || receipt.session}, ${new Date(receipt.ended).toLocaleString([], { hour12: false })}`;
    if (fresh.has(receipt)) tr.classList.add("new");
    return tr;
  }));
  $("receipts").hidden = !list.length;
  $("unended").hidden = list.length > 0;
  $("more").hidden = world.receipts.length <= world.shown;
}
$("more").addEventListener("click", () => { world.shown += 80; receipts(new Set()); });

let silence;
function announce(text) {
  say($("said"), text);
  clearTimeout(silence);
  silence = setTimeout(() => say($("said"), ""), 6000);
}

// ---- Charts

const SVG = "http://www.w3.org/2000/svg";
function draw(tag, props, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

class Chart {
  constructor(id, title, column, write, steps) {
    Object.assign(this, { box: $(id), title, column, write, steps, at: null });
    this.mark = (value) => write(value).replace(".0\u00a0", "\u00a0");
    this.svg = draw("svg", { role: "img", tabindex: "0" });
    this.tip = make("div", { class: "tip", hidden: true });
    this.wait = make("div", { class: "waiting" }, "The chart begins now.");
    this.box.append(this.svg, this.tip, this.wait);
    const point = (event) => { this.at = this.when(event.clientX - this.box.getBoundingClientRect().left); this.draw(); };
    this.svg.addEventListener("pointermove", point);
    this.svg.addEventListener("pointerdown", point);
    for (const leave of ["pointerleave", "blur"]) this.svg.addEventListener(leave, () => { this.at = null; this.draw(); });
    this.svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      this.at = Math.min(now(), Math.max(now() - range() * 1000, (this.at ?? now()) + step * range() * 20));
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  when(x) { return now() - range() * 1000 * (1 - (x - this.left) / (this.right - this.left)); }

  draw() {
    const [width, height, end] = [this.box.clientWidth, this.box.clientHeight, now()];
    const points = world.points.filter(([ms]) => ms >= end - range() * 1000 - 10000);
    this.wait.hidden = points.length > 1;
    const most = Math.max(0, ...points.map((p) => p[this.column]));
    const top = most || this.steps ? this.ceiling(Math.max(1, most)) : 2 ** 20;
    Object.assign(this, { left: this.steps ? 34 : 62, right: width - 4 });
    const [up, down] = [10, height - 20];
    const x = (ms) => this.right - ((end - ms) / (range() * 1000)) * (this.right - this.left);
    const y = (value) => down - (value / top) * (down - up);
    const nodes = [];
    for (const part of [0, 0.5, 1]) {
      const at = Math.round(y(top * part)) + 0.5;
      nodes.push(draw("line", { class: "grid", x1: this.left, x2: this.right, y1: at, y2: at }));
      nodes.push(draw("text", { x: this.left - 8, y: at + 4, "text-anchor": "end" }, this.mark(top * part)));
    }
    const roomy = this.right - this.left > 380;
    const parts = range() > 300 ? (roomy ? 4 : 2) : roomy ? 5 : 1;
    for (let n = 0; n <= parts; n += 1) {
      const back = (range() * (parts - n)) / parts;
      const text = n === parts ? "now" : range() > 300 ? clock(end - back * 1000, false) : `\u2212${back / 60}\u00a0min`;
      nodes.push(draw("text", { x: x(end - back * 1000), y: height - 4, "text-anchor": n === 0 ? "start" : n === parts ? "end" : "middle" }, text));
    }
    for (const run of this.runs(points)) {
      const path = run.map(([ms, ...rest], at) => {
        const [px, py] = [Math.max(this.left, x(ms)).toFixed(1), y(rest[this.column - 1]).toFixed(1)];
        return at === 0 ? `M${px} ${py}` : this.steps ? `H${px}V${py}` : `L${px} ${py}`;
      }).join("");
      const [first, last] = [Math.max(this.left, x(run[0][0])), x(run.at(-1)[0])];
      nodes.push(draw("path", { class: "area", d: `${path}V${down}H${first.toFixed(1)}Z` }));
      nodes.push(draw("path", { class: "line", d: last - first < 1 ? `${path}h1` : path }));
    }
    this.cursor(points, nodes, x, y, up, down, width);
    const latest = points.at(-1)?.[this.column] ?? 0;
    this.svg.setAttribute("aria-label", `${this.title}: ${this.write(latest)} now, at most ${this.write(Math.max(0, ...points.map((p) => p[this.column])))} in the last ${range() > 300 ? "hour" : "five minutes"}`);
    this.svg.replaceChildren(...nodes);
  }

  // The value next to where somebody points.
  cursor(points, nodes, x, y, up, down, width) {
    const near = this.at === null ? undefined : points.reduce((best, p) => (best && Math.abs(best[0] - this.at) <= Math.abs(p[0] - this.at) ? best : p), undefined);
    this.tip.hidden = !near;
    if (!near) return;
    const at = Math.max(this.left, x(near[0]));
    nodes.push(draw("line", { class: "cursor", x1: Math.round(at) + 0.5, x2: Math.round(at) + 0.5, y1: up, y2: down }));
    nodes.push(draw("circle", { class: "dot", cx: at, cy: y(near[this.column]), r: 3.5 }));
    say(this.tip, `${this.write(near[this.column])}  \u00b7  ${clock(near[0])}`);
    const half = this.tip.offsetWidth / 2;
    this.tip.style.left = `${Math.min(width - 2 * half, Math.max(0, at - half))}px`;
  }

  // Where nobody looked for a while there is no line.
  runs(points) {
    const runs = [];
    for (const point of points) {
      const run = runs.at(-1);
      if (run && point[0] - run.at(-1)[0] < 30000) run.push(point); else runs.push([point]);
    }
    return runs;
  }

  ceiling(most) {
    const base = this.steps ? 10 : 2;
    const unit = this.steps ? 1 : 1024 ** Math.floor(Math.log(most) / Math.log(1024));
    const size = base ** Math.floor(Math.log(most / unit) / Math.log(base)) * unit;
    const nice = (this.steps ? [1, 2, 4, 6, 8, 10, 20] : [1, 1.25, 1.5, 1.75, 2, 2.5, 3]).find((n) => n * size >= most * 1.05) * size;
    return this.steps ? Math.max(2, Math.ceil(nice / 2) * 2) : nice;
  }
}

const range = () => Number(document.querySelector("#range input:checked").value);
const charts = [
  new Chart("c-memory", "Memory", 3, sized, false),
  new Chart("c-processes", "Processes", 2, (n) => String(Math.round(n)), true),
];
$("range").addEventListener("change", () => charts.forEach((chart) => chart.draw()));

// ---- Ending a session

let asked = null;
function ask(key) {
  const row = world.rows.get(key);
  if (!row || leaving.has(row.session)) return;
  const all = [...world.rows.values()].filter((other) => other.session === row.session);
  const processes = all.reduce((sum, other) => sum + other.processes, 0);
  const who = row.host ? `${row.host.name || "its host"} (pid ${row.host.pid})` : "whoever uses it";
  asked = row;
  say($("c-title"), all.length > 1 ? `End the session of ${row.server}?` : `End ${row.server}?`);
  say($("c-text"), `${all.length > 1 ? `The session has ${all.length} servers: ${all.map((r) => r.server).join(", ")}. ` : ""}`
    + `${processes ? `${many(processes, "process is", "processes are")} asked to leave, and killed if ${processes === 1 ? "it does" : "they do"} not. ` : ""}`
    + `${who} loses ${all.length > 1 ? "them" : "it"}.`);
  say($("c-error"), "");
  $("c-yes").disabled = false;
  $("confirm").showModal();
  $("c-no").focus();
}
$("c-no").addEventListener("click", () => $("confirm").close());
$("c-yes").addEventListener("click", async () => {
  const row = asked;
  $("c-yes").disabled = true;
  try {
    const answer = await fetch("/v1/page/end", {
      method: "POST", headers: { "Content-Type": "application/json", "Lariat-Page": "1" },
      body: JSON.stringify({ session: row.session }), signal: AbortSignal.timeout(10000),
    });
    if (answer.status !== 202) throw new Error((await answer.json()).detail);
    leaving.add(row.session);
    $("confirm").close();
    arrange();
  } catch (error) {
    say($("c-error"), error.name === "TimeoutError" ? "The daemon has not answered for 10 s. Look whether the session is still there before you try again." : error instanceof TypeError ? "The daemon cannot be reached." : error.message);
    $("c-yes").disabled = false;
  }
});
$("confirm").addEventListener("close", () => lines.get(active)?.tr.focus());

// ---- Keyboard

function step(by) {
  const rows = [...table.querySelectorAll("tr.server")];
  const at = rows.findIndex((tr) => tr.dataset.key === active);
  const inside = rows.includes(document.activeElement);
  const next = rows[Math.min(rows.length - 1, Math.max(0, inside ? at + by : Math.max(0, at)))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target === $("filter")) {
    if (event.key === "Escape") { $("filter").value = ""; arrange(); $("filter").blur(); }
    if (event.key === "ArrowDown" || event.key === "Enter") { event.preventDefault(); step(0); }
    return;
  }
  const onRow = event.target.matches?.("tr.server");
  const act = {
    "/": () => { $("filter").focus(); $("filter").select(); },
    "?": () => $("help").showModal(),
    "r": () => { const [a, b] = document.querySelectorAll("#range input"); (a.checked ? b : a).checked = true; charts.forEach((c) => c.draw()); },
    "j": () => step(1), "k": () => step(-1), "ArrowDown": () => step(1), "ArrowUp": () => step(-1),
    ...(onRow && {
      "Enter": () => unfold(active), "ArrowRight": () => unfold(active, true), "ArrowLeft": () => unfold(active, false),
      "e": () => ask(active),
    }),
  }[event.key];
  if (!act || event.target.matches?.("input[type=radio]")) return;
  event.preventDefault();
  act();
});
$("keys").addEventListener("click", () => $("help").showModal());
$("k-close").addEventListener("click", () => $("help").close());
$("filter").addEventListener("input", arrange);

// ---- What the daemon says

// The row to go on from, if the one that has the focus is about to go.
function heir(gone) {
  const rows = [...table.querySelectorAll("tr.server")];
  const at = rows.findIndex((tr) => tr.contains(document.activeElement));
  if (at < 0 || !gone.includes(rows[at].dataset.key)) return null;
  const near = [...rows.slice(at + 1), ...rows.slice(0, at).reverse()];
  return near.find((tr) => !gone.includes(tr.dataset.key))?.dataset.key;
}

function take(change, first) {
  heard = Date.now();
  const next = heir(change.gone);
  world.skew = change.now - Date.now();
  for (const row of change.rows) world.rows.set(row.key, row);
  for (const key of change.gone) {
    world.rows.delete(key);
    lines.delete(key);
    open.delete(key);
  }
  for (const session of leaving) {
    if (![...world.rows.values()].some((row) => row.session === session)) leaving.delete(session);
  }
  const last = world.points.at(-1)?.[0] ?? 0;
  if (change.point[0] - last > 900) world.points.push(change.point); else if (world.points.length) world.points[world.points.length - 1] = [last, ...change.point.slice(1)];
  while (world.points.length && world.points[0][0] < change.now - 3700000) world.points.shift();
  world.survivors = change.survivors;
  world.receipts = [...world.receipts, ...change.receipts].slice(-100);
  if (change.receipts.length || first) receipts(new Set(first ? [] : change.receipts));
  if (!first && change.receipts.length) {
    const [one] = change.receipts.slice(-1);
    const rest = one.survivors.length ? `${many(one.survivors.length, "survivor")}!` : "nothing is left";
    announce(change.receipts.length > 1 ? `${change.receipts.length} sessions have ended` : `${one.server} has ended (${one.reason}); ${rest}`);
  }
  arrange();
  if (next) lines.get(next)?.tr.focus();
  figures();
  charts.forEach((chart) => chart.draw());
}

function status(tone, word) {
  $("link").dataset.tone = tone;
  say($("link").lastElementChild, word);
}

// Whether what is shown is how it is.
function fresh() {
  status("good", "live");
  $("banner").hidden = true;
  $("main").classList.remove("stale");
}

let source = null;
let heard = Date.now();
function connect(pause = 500) {
  // A browser has six connections to one host for all its tabs: one that nobody sees keeps none.
  if (document.hidden || source) return;
  const own = (source = new EventSource("/v1/page/events"));
  heard = Date.now();
  own.addEventListener("hello", (event) => {
    const hello = JSON.parse(event.data);
    Object.assign(world, { rows: new Map(), receipts: [], points: hello.history });
    say($("machine"), hello.about.machine);
    say($("version"), `lariat ${hello.about.version}`);
    for (const key of [...lines.keys()]) if (!hello.rows.some((row) => row.key === key)) lines.delete(key);
    take(hello, true);
    pause = 500;
    fresh();
    $("main").setAttribute("aria-busy", "false");
  });
  own.addEventListener("tick", (event) => {
    take(JSON.parse(event.data), false);
    if ($("link").dataset.tone !== "good") fresh();
  });
  own.addEventListener("error", async () => {
    own.close();
    if (source !== own) return;
    status("bad", "lost");
    $("main").classList.add("stale");
    const let_in = await fetch("/", { cache: "no-store" }).then((answer) => answer.status !== 401, () => null);
    if (source !== own) return;
    source = null;
    if (let_in === false) return banner("This browser is not let in any more. Run lariat open, and follow its link.");
    banner(let_in === null ? "The daemon cannot be reached; what you see is how it was. Trying again\u2026 If it has ended, run lariat open." : "The connection broke. Trying again\u2026");
    setTimeout(() => connect(Math.min(5000, pause * 2)), pause);
  });
}
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  source?.close();
  source = null;
  status("off", "paused");
});

// A daemon that is stopped keeps its connections: who says nothing is not live.
setInterval(() => {
  const quiet = Date.now() - heard;
  if (document.hidden || source?.readyState !== EventSource.OPEN || quiet < 3000) return;
  status("warn", `no news for ${span(quiet / 1000)}`);
  $("main").classList.add("stale");
  banner(`No news from the daemon since ${clock(heard)}; what you see is how it was then.`);
}, 1000);

function banner(text) {
  $("banner").hidden = false;
  say($("banner"), text);
}

connect();
