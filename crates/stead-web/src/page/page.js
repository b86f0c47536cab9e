
"use strict";
// One page, several views. What is shown comes as JSON from `root`; nothing is ever written as HTML.
const root = document.body.dataset.root;
const MOST = 500;
const MOST_DRAWN = 150;
const LOG_BYTES = 65536;
const at = (id) => document.getElementById(id);
const view = at("view");

function make(kind, props, ...inner) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(props || {})) {
    if (name === "class") { made.className = value; }
    else if (name.startsWith("on")) { made.addEventListener(name.slice(2), value); }
    else if (value !== undefined && value !== null && value !== false) { made.setAttribute(name, value === true ? "" : value); }
  }
  made.append(...inner.flat().filter((item) => item !== null && item !== undefined && item !== ""));
  return made;
}
const link = (to, text) => make("a", { href: to }, text);
const said = (word, name) => make("span", { class: name || colour(word) }, (word || "").replace("_", " "));
const short = (text) => (text || "").replace(/^sha256:/, "").slice(0, 12);

// Every word of a state is one of five: good, busy, bad, odd or nothing.
const COLOURS = {
  good: ["success", "changed", "unchanged", "completed", "converged", "connected", "ready", "finished", "done",
    "valid", "exited", "no_change", "healthy", "succeeded"],
  busy: ["running", "started", "queued", "converging", "creating", "pending", "backoff", "stopping", "undoing", "configuring"],
  bad: ["failed", "error", "invalid", "degraded", "lost", "timeout", "refused", "unreachable", "not valid", "stale", "foreign"],
  odd: ["interrupted", "cancelled", "aborted", "undone", "held", "paused", "suspect", "partial"],
};
function colour(word) {
  for (const [name, words] of Object.entries(COLOURS)) { if (words.includes(word)) { return name; } }
  return "soft";
}
function time(text) { return text ? text.slice(0, 19).replace("T", " ") : ""; }
const moment = (text) => make("span", { class: "moment" }, time(text));
function span(ms) {
  if (ms === undefined || ms === null) { return ""; }
  if (ms < 1000) { return Math.round(ms) + "\u00a0ms"; }
  if (ms < 60000) { return (ms / 1000).toFixed(1) + "\u00a0s"; }
  const seconds = Math.floor(ms / 1000);
  const part = (count, unit) => (count ? count + " " + unit + " " : "");
  return (part(Math.floor(seconds / 3600), "h") + part(Math.floor(seconds / 60) % 60, "min") + part(seconds % 60, "s")).trim();
}

// A table: heads, and rows of texts or elements. What is too much is said, and what it means that there is nothing.
function table(heads, rows, nothing) {
  const body = make("tbody", {});
  const note = (text) => make("tr", {}, make("td", { class: "soft", colspan: heads.length }, text));
  for (const row of rows.slice(0, MOST)) { body.append(row instanceof Element ? row : line(row)); }
  if (rows.length === 0) { body.append(note(nothing || "none")); }
  if (rows.length > MOST) { body.append(note("and " + (rows.length - MOST) + " more")); }
  const head = make("thead", {}, make("tr", {}, heads.map((text) => make("th", { scope: "col" }, text))));
  return make("div", { class: "wide" }, make("table", {}, head, body));
}
function line(cells, props) {
  return make("tr", props || {}, cells.map((cell, column) =>
    make("td", { class: column === 0 ? "id" : "" }, cell === null || cell === undefined ? "" : cell instanceof Node ? cell : String(cell))));
}

function trouble(text) {
  at("trouble").hidden = !text;
  at("trouble").textContent = text || "";
}
// What is lost on its way is asked for again: a network that changes ends every request that is on it.
async function sent(path, tries) {
  try { return await fetch(root + path, { cache: "no-store" }); }
  catch (error) {
    if (tries === 0) { throw error; }
    await new Promise((go) => setTimeout(go, 500));
    return sent(path, tries - 1);
  }
}
async function ask(path) {
  const answer = await sent(path, 3);
  if (!answer.ok) {
    const text = await answer.text();
    let told = text;
    try { told = JSON.parse(text).error || text; } catch { /* not JSON: the text says it */ }
    const help = told.help ? "\n→ " + told.help : "";
    throw new Error((String(told.message || told).trim() || "the answer is " + answer.status) + help);
  }
  return answer;
}
const json = async (path) => (await ask(path)).json();

// What belongs to the view that is open: it ends when another is opened.
let open = { live: false };
function show(...inner) { renew(view, ...inner.flat().filter(Boolean)); }
// Draws a place anew. Where a person has scrolled to, and what the keyboard is at, stays: a view that goes on is drawn every second.
function renew(place, ...inner) {
  const scrolls = () => [...place.querySelectorAll(".wide, .graph")];
  const named = (one) => one.dataset.name || one.getAttribute("aria-label") || one.textContent;
  const were = scrolls().map((one) => [one.scrollLeft, one.scrollTop]);
  const held = place.contains(document.activeElement) && document.activeElement !== place ? document.activeElement : null;
  place.replaceChildren(...inner);
  scrolls().forEach((one, index) => { if (were[index]) { [one.scrollLeft, one.scrollTop] = were[index]; } });
  if (held && !held.isConnected) {
    const again = [...place.querySelectorAll(held.tagName)].find((one) => named(one) === named(held));
    if (again) { again.focus({ preventScroll: true }); }
  }
}
// Asks again and again while the view is open; `draw` gets what came if it is something new.
function watch(path, pause, draw) {
  const mine = open;
  let before;
  const look = async () => {
    try {
      const text = await (await ask(path)).text();
      if (!mine.live) { return; }
      trouble("");
      if (text !== before) { before = text; draw(JSON.parse(text)); }
    } catch (error) {
      if (!mine.live) { return; }
      // What was seen before stays below it.
      if (before === undefined) { show(); }
      trouble(String(error.message || error));
    }
    mine.timer = setTimeout(look, document.hidden ? 5 * pause : pause);
  };
  look();
}

const VIEWS = {
  runs: { title: "Runs", draw: runs },
  nodes: { title: "Nodes", draw: nodes },
  jobs: { title: "Jobs", draw: jobs },
  fleet: { title: "Fleet", draw: fleet },
};
let about = { title: "", views: [] };

function route() {
  open.live = false;
  clearTimeout(open.timer);
  if (open.source) { open.source.close(); }
  open = { live: true };
  trouble("");
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const name = about.views.includes(parts[0]) ? parts[0] : about.views[0];
  for (const tab of at("tabs").children) {
    if (tab.dataset.view === name) { tab.setAttribute("aria-current", "page"); } else { tab.removeAttribute("aria-current"); }
  }
  document.title = "Stead " + about.title;
  show(make("p", { class: "soft" }, "Loading."));
  if (name === undefined) { show(make("p", {}, "There is nothing to show here.")); }
  else if (name === "runs" && parts[1] === "diff" && parts[3]) { diff(parts[2], parts[3]); }
  else if (name === "runs" && parts[1]) { run(parts[1]); }
  else { VIEWS[name].draw(); }
}

// ---- runs ----
const chosen = new Set();
const wanted = { text: "", status: "" };
function runs() {
  const list = make("div", {});
  const compare = make("button", { type: "button", onclick: () => {
    const [from, to] = [...chosen].sort();
    location.hash = "#/runs/diff/" + encodeURIComponent(from) + "/" + encodeURIComponent(to);
  } }, "Compare two");
  const filter = make("input", { type: "search", placeholder: "Filter", "aria-label": "Filter runs", value: wanted.text,
    oninput: (event) => { wanted.text = event.target.value; draw(); } });
  const status = make("select", { "aria-label": "Status", onchange: (event) => { wanted.status = event.target.value; draw(); } });
  show(make("h2", {}, "Runs"), make("div", { class: "row" }, filter, status, compare), list);
  let all = [];
  function draw() {
    compare.disabled = chosen.size !== 2;
    const words = [...new Set(all.map((row) => row.status))].sort();
    status.replaceChildren(...["", ...words].map((word) =>
      make("option", { value: word, selected: word === wanted.status }, word || "every status")));
    const fits = (row) => (!wanted.status || row.status === wanted.status) &&
      [row.run_id, row.kind, row.plan].join(" ").includes(wanted.text);
    const nothing = all.length ? "No run fits the filter." : "There are no runs here yet. `stead plan run FILE` makes one; so do steps, roles and nodes.";
    renew(list, table(["run", "status", "plan", "kind", "began", "took", "sealed", "compare"], all.filter(fits).map((row) => [
      link("#/runs/" + encodeURIComponent(row.key), row.run_id), said(row.status), row.plan, row.kind, moment(row.started_at),
      row.duration_seconds === null ? "" : span(row.duration_seconds * 1000), row.sealed ? "yes" : "no",
      row.kind && row.kind !== "run" ? "" : make("input", { type: "checkbox", "aria-label": "Compare " + row.run_id, checked: chosen.has(row.key), onchange: (event) => {
        if (event.target.checked) { chosen.add(row.key); } else { chosen.delete(row.key); }
        compare.disabled = chosen.size !== 2;
      } }),
    ]), nothing));
  }
  watch("runs", 2000, (told) => {
    all = told.runs;
    for (const run of chosen) { if (!all.some((row) => row.key === run)) { chosen.delete(run); } }
    draw();
    trouble(told.problems.join(" · "));
  });
}

async function diff(from, to) {
  const mine = open;
  try {
    const told = await json("diff?from=" + encodeURIComponent(from) + "&to=" + encodeURIComponent(to));
    if (!mine.live) { return; }
    show(make("h2", {}, "From ", link("#/runs/" + encodeURIComponent(from), from), " to ", link("#/runs/" + encodeURIComponent(to), to)),
      told.warnings.map((text) => make("p", { class: "odd" }, text)), make("pre", {}, told.text));
  } catch (error) { if (mine.live) { show(); trouble(String(error.message || error)); } }
}

// What events make of a run. A live run and a recorded one are the same fold.
class Run {
  constructor(told) {
    this.tasks = new Map();
    this.roles = new Map();
    this.nodes = new Map();
    this.notes = [];
    this.logs = new Map();
    this.status = told.meta.status;
    for (const task of told.plan.tasks || []) { this.task(task.name).after = task.depends_on || []; }
    for (const [name, role] of Object.entries(told.plan.roles || {})) { this.role(name).agent = role.agent_id || ""; }
  }
  task(name, tasks) {
    const of = tasks || this.tasks;
    if (!of.has(name)) { of.set(name, { name, state: "waiting", after: [], hosts: new Map(), below: new Map(), error: "" }); }
    return of.get(name);
  }
  role(name) {
    if (!this.roles.has(name)) { this.roles.set(name, { name, agent: "", state: "waiting", detail: "" }); }
    return this.roles.get(name);
  }
  host(task, name) {
    if (!task.hosts.has(name)) { task.hosts.set(name, { name, state: "waiting", attempt: 0, error: "" }); }
    return task.hosts.get(name);
  }
  take(event) {
    if (event.ev === "run_started") { this.began = event.t; this.status = "running"; this.mode = event.mode; }
    else if (event.ev === "run_resumed") {
      this.status = "running";
      this.notes.push("taken up again at " + time(event.t));
      for (const task of this.tasks.values()) { if (["running", "started", "queued"].includes(task.state)) { task.state = "waiting"; } }
      for (const name of [...(event.reset || []), ...(event.rerun || [])]) { this.task(name).state = "waiting"; }
    }
    else if (event.ev === "run_finished") { this.status = event.status; this.took = event.duration_ms; this.code = event.exit_code; }
    else if (event.ev === "warning") { this.notes.push(event.text); }
    else if (event.ev === "cancel_requested") { this.notes.push("stops: " + event.why + (event.task ? " (" + event.task + ")" : "")); }
    else if (event.ev === "node") { this.nodes.set(event.name, event); }
    else if (event.ev === "delegated") { this.below(event); }
    else if (event.ev.startsWith("role_")) { this.ofRole(event); }
    else if (event.ev.startsWith("agent_")) {
      if (event.ev !== "agent_connected") { this.notes.push(event.agent + (event.ev === "agent_lost" ? " is lost" : " is back")); }
    }
    else if (event.ev === "log" && this.roles.has(event.task)) { this.written(event); this.role(event.task); }
    else if (event.task) { this.ofTask(this.task(event.task), event); }
  }
  below(event) {
    const inner = event.event;
    if (!inner || !inner.task) { return; }
    const name = [...(event.origin || []), inner.task].join("/");
    this.ofTask(this.task(name, this.task(event.task).below), inner);
  }
  ofTask(task, event) {
    const host = event.host ? this.host(task, event.host) : null;
    switch (event.ev) {
      case "task_ready": task.state = "queued"; break;
      case "task_started":
        task.state = "running"; task.began = event.t;
        for (const name of event.hosts || []) { this.host(task, name); }
        break;
      case "attempt_started": if (host) { host.state = "running"; host.attempt = event.attempt; } break;
      case "attempt_failed": if (host) { host.state = "backoff"; host.error = event.error; } break;
      case "host_result":
        host.state = event.status; host.took = event.duration_ms; host.attempt = event.attempt || host.attempt;
        host.error = event.error || event.reason || "";
        break;
      case "task_finished":
        task.state = event.status; task.took = event.duration_ms; task.error = event.error || event.reason || "";
        break;
      case "task_skipped": task.state = "skipped"; task.error = event.reason; break;
      case "task_not_run": task.state = "not_run"; task.error = event.reason; break;
      case "undo_started": task.state = "undoing"; break;
      case "undo_finished": task.state = event.status === "failed" ? "failed" : "undone"; task.error = event.error || task.error; break;
      case "log": this.written(event); break;
    }
  }
  ofRole(event) {
    const role = this.role(event.role);
    switch (event.ev) {
      case "role_started": role.state = "running"; role.agent = event.agent || role.agent; role.detail = "process " + event.pid; break;
      case "role_ready": role.state = "ready"; role.detail = "after " + span(event.after_ms); break;
      case "role_stop": role.state = "stopping"; role.detail = event.reason || ""; break;
      case "role_exited":
        role.state = event.exit_code === 0 || (event.exit_code === null && role.state === "stopping") ? "exited" : "failed";
        role.detail = event.signal ? "by " + event.signal : "exit code " + event.exit_code;
        role.took = event.duration_ms;
        break;
    }
  }
  written(event) {
    const end = event.offset + event.len;
    this.logs.set(event.file, Math.max(end, this.logs.get(event.file) || 0));
    const of = this.logsOf || (this.logsOf = new Map());
    const key = event.task + "\n" + (event.host || "");
    if (!of.has(key)) { of.set(key, new Set()); }
    of.get(key).add(event.file);
  }
  filesOf(task, host) { return [...((this.logsOf || new Map()).get(task + "\n" + (host || "")) || [])].sort(); }
}

async function run(id) {
  const mine = open;
  const path = "runs/" + encodeURIComponent(id);
  let told;
  try { told = await json(path); } catch (error) { show(); trouble(String(error.message || error)); return; }
  if (!mine.live) { return; }
  const state = new Run(told);
  const head = make("div", {});
  const graph = make("div", {});
  const body = make("div", {});
  const log = make("div", {});
  const verdict = make("div", {});
  const verify = make("button", { type: "button", onclick: async () => {
    verify.disabled = true;
    try { verdict.replaceChildren(verified(await json(path + "/verify"))); }
    catch (error) { verdict.replaceChildren(make("p", { class: "bad" }, String(error.message || error))); }
    verify.disabled = false;
  } }, "Verify the record");
  show(make("h2", {}, (told.meta.plan || told.meta.name || told.meta.kind || "run") + " ", make("span", { class: "soft id" }, id)),
    head, make("div", { class: "row" }, verify, make("span", { class: "soft" }, told.path)), verdict, graph, body, log);
  document.title = (told.meta.plan || id) + ": Stead";
  const openRows = new Set();
  let read = null;
  // Of a run of roles the tasks are phases, and those are done, whatever they changed.
  const hasPhases = (told.meta.kind || "run") === "run";
  const word = (state) => (hasPhases && ["changed", "unchanged"].includes(state) ? "done" : state);

  function draw() {
    const took = state.took !== undefined ? span(state.took) : state.began ? span(Date.now() - Date.parse(state.began)) : "";
    const counts = new Map();
    for (const task of state.tasks.values()) { counts.set(word(task.state), (counts.get(word(task.state)) || 0) + 1); }
    const error = state.status !== "running" && told.meta.error;
    head.replaceChildren(make("p", {}, said(state.status), " ", took, state.code ? ", exit code " + state.code : "",
      state.mode && state.mode !== "run" ? " (" + state.mode + ")" : "",
      make("span", { class: "soft" }, " · began " + time(state.began || told.meta.started_at) + " · " +
        [...counts].map(([word, count]) => count + " " + word.replace("_", " ")).join(", "))),
      ...(error ? [make("pre", { class: "bad" }, error)] : []),
      ...state.notes.map((text) => make("p", { class: "odd" }, text)));
    renew(graph, ...(state.tasks.size > 1 && state.tasks.size <= MOST_DRAWN ? [drawGraph([...state.tasks.values()])] : []));
    const parts = [];
    if (state.roles.size) {
      parts.push(make("h3", {}, "Roles"), table(["role", "agent", "state", "", "took", "output"], [...state.roles.values()].map((role) => [
        role.name, role.agent, said(role.state), role.detail, span(role.took), files(state.logsOf ? rolesFiles(role) : []),
      ])));
    }
    if (state.nodes.size) {
      parts.push(make("h3", {}, "Nodes"), table(["node", "status", "machine", "mode", "address", "spec"], [...state.nodes.values()].map((node) => [
        node.name, said(node.status), [node.type, node.driver].filter(Boolean).join(" on "), node.mode, node.ip, node.spec,
      ])));
    }
    if (state.tasks.size) {
      const rows = [];
      for (const task of state.tasks.values()) {
        const inner = task.hosts.size > 1 || task.below.size || state.filesOf(task.name).length || [...task.hosts.keys()].some((host) => state.filesOf(task.name, host).length);
        const name = inner ? make("button", { type: "button", class: "plain", "data-name": task.name, "aria-expanded": String(openRows.has(task.name)), onclick: () => {
          if (!openRows.delete(task.name)) { openRows.add(task.name); }
          draw();
        } }, (openRows.has(task.name) ? "▾ " : "▸ ") + task.name) : task.name;
        rows.push(line([name, said(word(task.state)), span(task.took), hostsOf(task), task.error], {}));
        if (openRows.has(task.name)) {
          for (const host of task.hosts.values()) {
            rows.push(line([host.name, said(word(host.state)), span(host.took), files(state.filesOf(task.name, host.name)),
              (host.attempt > 1 ? "attempt " + host.attempt + ". " : "") + host.error], { class: "child" }));
          }
          if (state.filesOf(task.name).length) { rows.push(line(["", "", "", files(state.filesOf(task.name)), ""], { class: "child" })); }
          for (const below of task.below.values()) {
            rows.push(line([below.name, said(below.state), span(below.took), "", below.error], { class: "child" }));
          }
        }
      }
      parts.push(make("h3", {}, hasPhases ? "Phases" : "Tasks"), table([hasPhases ? "phase" : "task", "state", "took", "hosts", "why"], rows));
    }
    renew(body, ...parts);
    if (read && state.logs.get(read.file) > read.end) { follow(); }
  }
  function rolesFiles(role) {
    const found = [];
    for (const [key, names] of state.logsOf) { if (key.startsWith(role.name + "\n")) { found.push(...names); } }
    return found.sort();
  }
  function hostsOf(task) {
    if (task.hosts.size < 2) { return [...task.hosts.keys()].join(""); }
    const counts = new Map();
    for (const host of task.hosts.values()) { counts.set(host.state, (counts.get(host.state) || 0) + 1); }
    return [...counts].map(([word, count]) => count + " " + word).join(", ");
  }
  function files(names) {
    return make("span", {}, names.map((name) => [make("button", { type: "button", class: "plain", onclick: () => openLog(name) },
      name.split("/").pop()), " "]).flat());
  }
  function openLog(file) {
    const text = make("pre", { tabindex: "0", "aria-label": "Output " + file }, "");
    read = { file, end: -1, text, busy: false };
    log.replaceChildren(make("h3", {}, file), text);
    follow();
    log.scrollIntoView({ block: "nearest" });
  }
  async function follow() {
    const mineLog = read;
    if (mineLog.busy) { return; }
    mineLog.busy = true;
    try {
      const from = mineLog.end < 0 ? "" : "&from=" + mineLog.end;
      const answer = await ask(path + "/log?file=" + encodeURIComponent(mineLog.file) + from);
      const bytes = await answer.text();
      const start = Number(answer.headers.get("x-from"));
      if (mineLog.end < 0 && start > 0) { mineLog.text.append("… the last " + LOG_BYTES / 1024 + " KiB of " + answer.headers.get("x-size") + " bytes\n"); }
      mineLog.end = Number(answer.headers.get("x-end"));
      const stays = mineLog.text.scrollTop + mineLog.text.clientHeight >= mineLog.text.scrollHeight - 8;
      mineLog.text.append(bytes);
      if (stays) { mineLog.text.scrollTop = mineLog.text.scrollHeight; }
    } catch (error) { mineLog.text.append("\n" + String(error.message || error)); }
    mineLog.busy = false;
    if (open === mine && read === mineLog && state.logs.get(mineLog.file) > mineLog.end && mineLog.end >= 0) { setTimeout(follow, 100); }
  }

  // Events come in bursts: the page is drawn once for each.
  let due = false;
  const drawSoon = () => {
    if (!due) { due = true; setTimeout(() => { due = false; if (mine.live) { draw(); } }, 60); }
  };
  draw();
  const source = new EventSource(root + path + "/events");
  mine.source = source;
  source.onmessage = (message) => { state.take(JSON.parse(message.data)); trouble(""); drawSoon(); };
  source.addEventListener("end", async () => {
    source.close();
    try { told = await json(path); } catch { /* what is known stays */ }
    drawSoon();
  });
  source.onerror = () => { if (mine.live && source.readyState !== 2) { trouble("The connection is lost; it is tried again."); } };
  const tick = () => { if (mine.live) { if (state.status === "running") { drawSoon(); } mine.timer = setTimeout(tick, 1000); } };
  tick();
}

function verified(told) {
  const signed = told.signature && told.signature.fingerprint ? ", signed by " + told.signature.fingerprint : ", not signed";
  return make("div", {}, make("p", {}, said(told.valid ? "valid" : "not valid"), ": " + told.hashes_verified + " of " +
    told.files_checked + " files verified" + signed),
    [...told.errors, ...told.warnings].map((finding) =>
      make("p", { class: told.errors.includes(finding) ? "bad" : "odd" }, "[" + finding.code + "] " + (finding.path ? finding.path + ": " : "") + finding.message)));
}

// Tasks in columns: each behind all that it waits for.
function drawGraph(tasks) {
  const SVG = at("blank").namespaceURI;
  const shape = (kind, props) => {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(props)) { made.setAttribute(name, value); }
    return made;
  };
  const known = new Map(tasks.map((task) => [task.name, task]));
  const column = new Map();
  const place = (task, path) => {
    if (column.has(task.name)) { return column.get(task.name); }
    if (path.has(task.name)) { return 0; }
    path.add(task.name);
    const before = task.after.map((name) => known.get(name)).filter(Boolean).map((other) => place(other, path) + 1);
    const found = Math.max(0, ...before);
    column.set(task.name, found);
    return found;
  };
  for (const task of tasks) { place(task, new Set()); }
  const columns = Array.from({ length: Math.max(...column.values()) + 1 }, () => []);
  for (const task of tasks) { columns[column.get(task.name)].push(task); }
  const WIDE = 190, HIGH = 30, GAP_X = 40, GAP_Y = 10;
  const spots = new Map();
  columns.forEach((names, x) => names.forEach((task, y) => spots.set(task.name, [x * (WIDE + GAP_X) + 10, y * (HIGH + GAP_Y) + 10])));
  const width = columns.length * (WIDE + GAP_X) - GAP_X + 20;
  const height = Math.max(...columns.map((names) => names.length)) * (HIGH + GAP_Y) + 10;
  const svg = shape("svg", { width, height, viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": "Tasks and what they wait for; the table below says the same" });
  for (const task of tasks) {
    const [x, y] = spots.get(task.name);
    for (const name of task.after) {
      if (!spots.has(name)) { continue; }
      const [fromX, fromY] = spots.get(name);
      const [a, b, c, d] = [fromX + WIDE, fromY + HIGH / 2, x, y + HIGH / 2];
      svg.append(shape("path", { d: "M" + a + " " + b + " C" + (a + 20) + " " + b + " " + (c - 20) + " " + d + " " + c + " " + d }));
    }
  }
  for (const task of tasks) {
    const [x, y] = spots.get(task.name);
    const group = shape("g", { class: colour(task.state) });
    const title = shape("title", {});
    title.textContent = task.name + ": " + task.state;
    const text = shape("text", { x: x + 8, y: y + 19 });
    text.textContent = task.name.length > 23 ? task.name.slice(0, 22) + "…" : task.name;
    group.append(title, shape("rect", { x, y, width: WIDE, height: HIGH, rx: 5 }), text);
    svg.append(group);
  }
  return make("div", { class: "graph" }, svg);
}

// ---- nodes ----
function nodes() {
  watch("nodes", 3000, (told) => {
    const parts = [make("h2", {}, "Nodes")];
    for (const problem of told.problems || []) { parts.push(make("p", { class: "bad" }, problem)); }
    if (told.nodes.length === 0) { parts.push(make("p", { class: "soft" }, "There are no nodes. `stead create -M MANIFEST -H HOST` makes some.")); }
    const levels = new Map();
    for (const node of told.nodes) {
      const name = node.manifest ? node.manifest + " on " + node.on : "";
      levels.set(name, [...(levels.get(name) || []), node]);
    }
    for (const [name, members] of levels) {
      if (name) { parts.push(make("h3", {}, name), topology(members)); }
      const hasMachine = members.some((node) => node.machine);
      parts.push(hasMachine
        ? table(["node", "status", "machine", "agent", "mode", "driver", "address", "spec", "converged", "why"], members.map((node) => [
          node.name, said(node.status), said(node.machine, node.machine === "running" ? "good" : "bad"), said(node.agent), node.mode,
          [node.type, node.driver].filter(Boolean).join(" on "), node.ip, node.spec,
          said(node.converged ? "yes" : "no", node.converged ? "good" : "bad"), reason(node),
        ]))
        : table(["node", "agent", "last seen", "spec", "state"], members.map((node) => [
          node.node, said(node.agent), moment(node.last_seen), short(node.spec_digest), short(node.state_digest)])));
    }
    show(parts);
  });
}
// Why a node is not what it should be, with the code that `stead explain` knows.
function reason(node) { return [node.code, node.why || node.error].filter(Boolean).join(": "); }
function topology(members) {
  const names = new Set(members.map((node) => node.name));
  const below = (parent) => members.filter((node) => (names.has(node.parent) ? node.parent : null) === parent);
  const branch = (parent, depth) => {
    const found = depth > 64 ? [] : below(parent);
    if (found.length === 0) { return null; }
    return make("ul", { class: "tree" }, found.map((node) => make("li", {},
      make("span", { class: node.converged ? "good" : "bad", "aria-hidden": "true" }, "● "), make("span", { class: "id" }, node.name), " ",
      make("span", { class: "soft" }, [node.mode, node.status, node.converged ? "" : "not converged"].filter(Boolean).join(", ")), branch(node.name, depth + 1))));
  };
  return branch(null, 0) || "";
}

// ---- jobs ----
function jobs() {
  watch("jobs", 3000, (told) => {
    show(make("h2", {}, "Jobs"), table(["job", "node", "state", "program", "exit code", "by", "when"], told.jobs.map((job) => [
      job.id, job.node, said(job.state, job.error || job.rc ? "bad" : ""), job.program, job.rc, job.by, moment(job.created_at)]),
      "There are no jobs. `stead job submit --node NODE -- COMMAND` makes one."));
  });
}

// ---- fleet ----
function fleet() {
  watch("fleet", 2000, (s) => {
    const kind = colour(s.state);
    const bar = make("div", { class: "bar " + kind, role: "progressbar", "aria-valuenow": s.convergence_percent, "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "Convergence" }, make("i", {}));
    bar.firstElementChild.style.width = s.convergence_percent + "%";
    const notes = [];
    if (s.brake.active) { notes.push(s.brake.message); }
    if (s.store.state !== "ok") { notes.push(s.store.message); }
    if (s.watcher.error) { notes.push(s.watcher.ref + ": " + s.watcher.error); }
    for (const hold of s.holds) { notes.push(hold.target + " is held by " + hold.by + " until " + hold.until + ": " + hold.reason); }
    const row = (i) => [i.key, i.worker, said(i.ready && i.state === "running" ? "ready" : i.state), i.code, i.message];
    const heads = ["instance", "worker", "state", "code", "what to do"];
    show(make("h2", {}, "Fleet ", make("code", {}, s.fleet), " ", said(s.state)),
      make("p", {}, "Generation " + s.generation + ", commit " + (short(s.commit) || "none") + ", " + s.convergence_percent + " % (" +
        s.counts.converged + " of " + s.counts.desired + " instances), led by " + s.leader.name + ", " + time(s.at)), bar,
      notes.map((text) => make("p", { class: "odd" }, text)),
      make("h3", {}, "Instances that are not as they should be"), table(heads, s.instances.filter((i) => i.code).map(row), "Every instance is as it should be."),
      make("h3", {}, "Groups"), table(["group", "active", "commit", "why"], s.groups.map((g) => [g.group, g.active && g.active.generation, short(g.active && g.active.commit), g.why])),
      make("h3", {}, "Rollouts"), table(["VM", "state", "updated", "why"], s.rollouts.filter((r) => r.state !== "done").map((r) => [r.vm, said(r.state), r.updated + " of " + r.total, r.message]), "Nothing is being replaced."),
      make("h3", {}, "Workers"), table(["worker", "state", "instances", "since", "what to do"], s.workers.map((w) => [w.id, said(w.state), w.instances, moment(w.since), w.message])),
      make("h3", {}, "Instances"), table(heads, s.instances.map(row), "The commit asks for none."));
  });
}

async function begin() {
  try { about = await json("about"); }
  catch (error) { trouble(String(error.message || error)); setTimeout(begin, 3000); return; }
  at("title").textContent = about.title;
  at("tabs").replaceChildren(...about.views.map((name) => make("a", { href: "#/" + name, "data-view": name }, VIEWS[name].title)));
  addEventListener("hashchange", route);
  route();
}
begin();
