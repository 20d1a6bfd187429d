// The console: the scheduler's fleet.

import {$, Failure, bar, bytes, call, contexts, count, dress, hasToken, lines, make, number, part, rows, say, seconds, share, sum, time, useToken, word} from "./parts.js";
import {offer} from "./playground.js";

// ---- Rates ----------------------------------------------------------------------------------------------------------------------

// A minute of tokens a second, by worker; "" is the fleet's.
const history = new Map();
const minute = 60;

function draw(svg, samples) {
  const top = Math.max(...samples, 1);
  svg.firstElementChild.setAttribute("points", samples.map((v, i) => `${i},${(15 - 14 * v / top).toFixed(2)}`).join(" "));
}

function sparkline() {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.append(document.createElementNS(svg.namespaceURI, "polyline"));
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 59 16");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  return svg;
}

// sample takes one value of each, once a second.
function sample() {
  const now = new Map([["", sum(fleet.workers, rateOf)], ...fleet.workers.map((w) => [w.address, rateOf(w)])]);
  for (const key of history.keys()) if (!now.has(key)) history.delete(key);
  for (const [key, value] of now) history.set(key, [...(history.get(key) ?? []), value].slice(-minute));
  for (const row of $("workers").children) {
    const svg = row.querySelector("svg");
    if (svg) draw(svg, history.get(row.dataset.key) ?? []);
  }
  draw($("rates"), history.get(""));
}

// ---- Workers --------------------------------------------------------------------------------------------------------------------

let fleet = {workers: [], generations: []};

// heard is whether a worker's report is of now.
const heard = (w) => Boolean(w.connected && w.report);
const loadOf = (w) => (heard(w) ? w.report.load ?? {} : {});
const rateOf = (w) => loadOf(w).tokensPerSecond ?? 0;
const moods = {ready: "good", degraded: "warn", draining: "warn", starting: "idle", "not ready": "bad"};

function showWorker(w, name, state, device, memory, cache, sequences, rate, step, here, change) {
  const report = w.report ?? {}, load = loadOf(w), d = report.device ?? {};
  dress(name.parentElement, heard(w) ? "" : "gone");
  lines(name, report.workerId || w.address, report.workerId ? w.address : "");
  const is = standing(w);
  const checks = heard(w) ? (report.checks ?? []).filter((c) => !c.ok).map((c) => `${c.name}: ${c.message}`) : [];
  lines(state, is, [w.problem, ...checks].filter(Boolean).join("; "), "problem");
  dress(part(state, 0), `state ${heard(w) ? moods[is] ?? "bad" : "bad"}`);
  const readings = [d.kind];
  if (d.temperatureCelsius !== undefined) readings.push(`${d.temperatureCelsius} °C`);
  if (d.powerMilliwatts !== undefined) readings.push(`${Math.round(d.powerMilliwatts / 1000)} W`);
  lines(device, d.name || d.kind || "–", readings.filter(Boolean).join(" · "));
  if (!heard(w)) {
    for (const cell of [memory, cache, sequences, rate, step, change]) cell.replaceChildren();
    lines(here, String(w.inFlight ?? 0), w.age ? `silent for ${time(seconds(w.age))}` : "");
    return;
  }
  showMemory(memory, d);
  const total = number(load.totalBlocks), cached = number(load.cachedBlocks), held = total - number(load.freeBlocks);
  bar(cache, total, [["held", held, "held by sequences"], ["cached", cached, "cached prefixes"]],
    total ? `${Math.round(100 * share(held, total))} % held, ${Math.round(100 * share(cached, total))} % cached` : "no model");
  lines(sequences, `${load.running ?? 0} running`, load.waiting || load.paused ? `${load.waiting ?? 0} waiting, ${load.paused ?? 0} paused` : "");
  if (!rate.firstChild) rate.append(make("span", "rate"), sparkline());
  say(rate.firstChild, count(rateOf(w)));
  lines(step, ...stepOf(report.progress ?? {}));
  lines(here, String(w.inFlight ?? 0), number(w.outstandingTokens) ? `${count(w.outstandingTokens)} tokens left` : "");
  showDrain(change, w, is);
}

// standing is a worker's state in words.
const standing = (w) => (heard(w) ? word(w.report.state, "WORKER_STATE_") : "unreachable");

// Drains that this page requested, by worker id: {says, busy, failed}.
const drains = new Map();

// showDrain offers to drain a worker that serves, and to take back one that drains.
function showDrain(cell, w, is) {
  const id = w.report.workerId, job = drains.get(id) ?? {}, drained = is === "draining";
  const button = part(cell, 0, "button"), says = part(cell, 1);
  button.type = "button";
  say(button, drained ? "Undrain" : "Drain");
  button.setAttribute("aria-label", `${button.textContent} ${id}`);
  button.hidden = !id || !(drained || is === "ready" || is === "degraded");
  button.ariaDisabled = String(Boolean(job.busy));
  button.onclick = () => {
    if (job.busy) return;
    if (drained) drain(id, "UndrainWorker");
    else sure(`Drain ${id}? It finishes its ${w.report.load?.running ?? 0} running sequences, or hands them to other workers, and refuses new requests until it is undrained.`,
      "Drain", "Cancel", () => drain(id, "DrainWorker"));
  };
  dress(says, job.failed ? "problem" : "note");
  say(says, job.says ?? "");
}

// drain has a worker drained or taken back. What follows from it is in the worker's state.
async function drain(id, method) {
  const job = {says: "requested", busy: true};
  drains.set(id, job);
  show();
  try {
    for await (const _ of call(method, {workerId: id}));
    job.says = "";
  } catch (failure) {
    Object.assign(job, {says: failure.message, failed: true});
  }
  job.busy = false;
  show();
}

// ---- Order and selection of workers -----------------------------------------------------------------------------------------------

const orders = {
  name: (w) => `${heard(w) ? 0 : 1}${w.report?.workerId ?? ""} ${w.address}`,
  state: standing,
  device: (w) => w.report?.device?.name ?? "",
  memory: (w) => 1 - share(number(w.report?.device?.bytesFree), number(w.report?.device?.bytesTotal)),
  cache: (w) => share(number(loadOf(w).totalBlocks) - number(loadOf(w).freeBlocks), number(loadOf(w).totalBlocks)),
  sequences: (w) => (loadOf(w).running ?? 0) + (loadOf(w).waiting ?? 0),
  rate: rateOf,
  step: (w) => seconds(w.report?.progress?.runningStepAge) ?? -1,
  here: (w) => w.inFlight ?? 0,
};
let order = {by: "name", falls: false};

// chosen are the workers that the filter's words select, in the order chosen. Workers that are equal in it are in the order of their names.
function chosen(workers) {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = (w) => [w.report?.workerId, w.address, standing(w), w.report?.device?.name, w.report?.device?.kind].join(" ").toLowerCase();
  const compare = (of, a, b) => (of(a) < of(b) ? -1 : of(a) > of(b) ? 1 : 0);
  return workers.filter((w) => words.every((part) => texts(w).includes(part))).sort((a, b) =>
    (order.falls ? -1 : 1) * compare(orders[order.by], a, b) || compare(orders.name, a, b));
}

// sort orders the workers by a column: numbers fall at first, and a second press turns the order round.
function sort(by) {
  order = {by, falls: order.by === by ? !order.falls : !["name", "state", "device"].includes(by)};
  for (const th of document.querySelectorAll("#fleet th")) {
    if (th.firstElementChild?.dataset.sort === by) th.ariaSort = order.falls ? "descending" : "ascending";
    else th.removeAttribute("aria-sort");
  }
  show();
}
for (const button of document.querySelectorAll("#fleet th button")) button.onclick = () => sort(button.dataset.sort);
$("filter").oninput = () => show();

function showMemory(cell, d) {
  const total = number(d.bytesTotal), used = total - Math.min(number(d.bytesFree), total);
  const weights = number(d.bytesWeights), kv = number(d.bytesKv), rest = Math.max(used - weights - kv, 0);
  bar(cell, total, [["weights", weights, `weights ${bytes(weights)}`], ["held", kv, `KV cache ${bytes(kv)}`],
    ["other", rest, `other ${bytes(rest)}`]], `${bytes(used)} of ${bytes(total)}`);
}

// stepOf is the age of the step that runs, or of the last one's end.
function stepOf(progress) {
  const running = seconds(progress.runningStepAge), last = seconds(progress.lastStepAge), bound = seconds(progress.stepBound);
  if (running !== undefined) return [`${time(running)} so far`, bound && running > bound ? `hung: beyond ${time(bound)}` : "", "problem"];
  return last === undefined ? ["none yet"] : [`${time(last)} ago`];
}

// ---- Models ---------------------------------------------------------------------------------------------------------------------

// Changes that this page requested, by model: {says, done, total, busy, failed}.
const changes = new Map();

// modelsOf are the models of the fleet by name, each with its copies on workers and its files.
function modelsOf(workers) {
  const all = new Map();
  const of = (name) => all.get(name) ?? all.set(name, {name, copies: [], files: []}).get(name);
  for (const w of workers.filter(heard)) {
    const loads = new Map((w.report.load?.models ?? []).map((m) => [m.name, m]));
    for (const m of w.report.models ?? []) of(m.name).copies.push({...m, worker: w.report.workerId, load: loads.get(m.name) ?? {}});
    for (const f of w.report.files ?? []) of(f.name).files.push(f);
  }
  return [...all.values()].sort((a, b) => (b.copies.length > 0) - (a.copies.length > 0) || (a.name < b.name ? -1 : 1));
}

// loadable is whether a model is loaded somewhere or could be. The others are shown on request: their error texts are long.
const loadable = (m) => m.copies.length > 0 || m.files.some((f) => !f.problem);
let unfolded;
$("unusable").onclick = () => {
  unfolded = !unfolded;
  show();
};

const stateOf = (copy) => word(copy.state, "MODEL_STATE_");

function showModel(m, name, state, digest, copies, memory, residency, sequences, change) {
  const about = m.copies[0]?.capabilities ?? m.files[0]?.capabilities ?? {};
  const usable = m.files.filter((f) => !f.problem);
  lines(name, m.name, [about.architecture, about.quantisation, about.parameters && `${count(about.parameters)} weights`,
    about.contextLength && `${count(contexts(m.copies).longest || about.contextLength)} tokens`].filter(Boolean).join(" · "));
  const states = [...new Set(m.copies.map(stateOf))];
  const problems = [...new Set([...m.copies, ...(m.copies.length ? [] : m.files)].map((c) => c.problem).filter(Boolean))];
  problems.push(...contexts(m.copies).differ);
  lines(state, states.join(", ") || (usable.length ? "on disk" : "unusable"), problems.join("; "), "problem");
  const mood = {ready: "good", loading: "warn", draining: "warn"};
  dress(part(state, 0), `state ${states.length ? states.map((s) => mood[s] ?? "bad").sort()[0] : usable.length ? "idle" : "bad"}`);
  const digests = [...new Set(m.copies.map((c) => c.modelDigest).filter(Boolean))];
  lines(digest, digests.map((d) => d.slice(0, 12)).join(", ") || "–");
  dress(part(digest, 0), "mono");
  digest.title = digests.join("\n");
  lines(copies, m.copies.length ? `${m.copies.length} of ${Math.max(m.files.length, m.copies.length)}` : "–", some(m.copies.map((c) => c.worker)));
  const each = number(m.copies[0]?.loaded?.deviceBytes ?? m.files[0]?.neededBytes);
  lines(memory, each ? bytes(each) : "–", m.copies.length > 1 ? "each" : "");
  lines(residency, ...residencyOf(m.copies));
  const running = sum(m.copies, (c) => c.load.running ?? 0), waiting = sum(m.copies, (c) => c.load.waiting ?? 0);
  const idle = m.copies.map((c) => seconds(c.idleAge)).filter((age) => age !== undefined);
  lines(sequences, m.copies.length ? `${running} running${waiting ? `, ${waiting} waiting` : ""}` : "–",
    m.copies.length ? `${count(sum(m.copies, (c) => c.load.tokensPerSecond ?? 0))} tokens/s${idle.length && Math.min(...idle) ? `, idle ${time(Math.min(...idle))}` : ""}` : "");
  showChange(change, m, usable.length);
}

const some = (names) => names.slice(0, 4).join(", ") + (names.length > 4 ? ` and ${names.length - 4} more` : "");

// residencyOf is how old the oldest check of resident bytes is, and how long models stay.
function residencyOf(copies) {
  const ages = copies.map((c) => seconds(c.verifiedAge)).filter((age) => age !== undefined);
  const stays = [];
  if (copies.some((c) => c.pinned)) stays.push("pinned");
  const unload = copies.map((c) => seconds(c.idleUnload)).filter(Boolean);
  if (unload.length) stays.push(`unloaded after ${time(Math.min(...unload))} idle`);
  return [ages.length ? `checked ${time(Math.max(...ages))} ago` : "–", stays.join(", ")];
}

function showChange(cell, m, usable) {
  const job = changes.get(m.name) ?? {};
  const [load, unload] = [part(cell, 0, "button"), part(cell, 1, "button")];
  const progress = part(cell, 2, "progress"), says = part(cell, 3);
  load.type = unload.type = "button";
  say(load, m.copies.length ? "Load another" : "Load");
  say(unload, "Unload");
  load.setAttribute("aria-label", `${load.textContent} ${m.name}`);
  unload.setAttribute("aria-label", `Unload ${m.name}`);
  load.hidden = usable <= m.copies.length;
  unload.hidden = m.copies.length === 0;
  dress(unload, "danger");
  load.ariaDisabled = unload.ariaDisabled = String(Boolean(job.busy));
  load.onclick = () => change(m.name, "LoadModel", {model: m.name, replicas: m.copies.length + 1});
  const where = m.copies.length === 1 ? "its worker" : `its ${m.copies.length} workers`;
  unload.onclick = () => job.busy || sure(`Unload ${m.name} from ${where}? Requests for it are refused from then on.`, "Unload", "Keep",
    () => change(m.name, "UnloadModel", {model: m.name}));
  progress.hidden = !job.busy || !job.total;
  progress.setAttribute("aria-label", `Load of ${m.name}`);
  progress.max = job.total || 1;
  progress.value = job.done || 0;
  dress(says, job.failed ? "problem" : "note");
  say(says, job.says ?? "");
}

// change has models loaded or unloaded, and shows how far that is. A load goes on though the page is closed.
async function change(name, method, request) {
  if (changes.get(name)?.busy) return;
  const job = {says: method === "LoadModel" ? "requested" : "unloading: running requests end first", busy: true};
  changes.set(name, job);
  show();
  try {
    for await (const event of call(method, request)) {
      if (event.progress) {
        const {state, eta, bytesDone, bytesTotal} = event.progress;
        Object.assign(job, {done: number(bytesDone), total: number(bytesTotal)});
        job.says = [event.workerId, word(state, "LOAD_STATE_"), bytesTotal && `${bytes(bytesDone)} of ${bytes(bytesTotal)}`,
          eta && `${time(seconds(eta))} left`].filter(Boolean).join(" · ");
      }
      if (event.failure) Object.assign(job, {says: event.failure.message, failed: true});
      if (event.result) job.says = `loaded on ${event.workerId}`;
      if (event.workerIds) job.says = `unloaded from ${some(event.workerIds)}, ${bytes(event.freedBytes)} freed`;
      show();
    }
  } catch (failure) {
    Object.assign(job, {says: failure.message, failed: true});
  }
  job.busy = false;
  show();
}

// sure asks a question with two answers, and invokes then if the first one is chosen.
function sure(question, yes, no, then) {
  const dialog = $("sure");
  say($("question"), question);
  say($("yes"), yes);
  say($("no"), no);
  $("no").onclick = () => dialog.close();
  $("yes").onclick = () => {
    dialog.close();
    then();
  };
  dialog.showModal();
}

// ---- The fleet ------------------------------------------------------------------------------------------------------------------

// show renders the scheduler's last message.
function show() {
  const {workers, generations} = fleet;
  const ready = workers.filter((w) => heard(w) && w.report.state === "WORKER_STATE_READY").length;
  say($("ready"), `${ready} of ${workers.length}`);
  say($("streams"), String(fleet.generationsUnderWay ?? 0));
  say($("running"), String(sum(workers, (w) => loadOf(w).running ?? 0)));
  say($("waiting"), String(sum(workers, (w) => loadOf(w).waiting ?? 0)));
  const total = sum(workers, (w) => number(loadOf(w).totalBlocks)), free = sum(workers, (w) => number(loadOf(w).freeBlocks));
  say($("cache"), `${Math.round(100 * share(total - free, total))} %`);
  say($("rate"), count(sum(workers, rateOf)));
  const seen = chosen(workers), known = workers.length > 0;
  rows($("workers"), seen, (w) => w.address, showWorker);
  $("find").hidden = workers.length <= 4 && !$("filter").value;
  say($("shown"), seen.length < workers.length ? `${seen.length} of ${workers.length} workers` : "");
  say($("rack").lastElementChild, known ? "No worker has these words." : "No worker is known.");
  const models = modelsOf(workers), refused = models.filter((m) => !loadable(m)).length;
  unfolded ??= refused > 0 && refused === models.length ? true : undefined;
  rows($("models"), unfolded ? models : models.filter(loadable), (m) => m.name, showModel);
  $("unusable").hidden = refused === 0;
  $("unusable").ariaExpanded = String(Boolean(unfolded));
  const files = refused === 1 ? "1 file that cannot be loaded" : `${refused} files that cannot be loaded`;
  say($("unusable"), `${unfolded ? "Hide" : "Show"} ${files}`);
  rows($("generations"), generations, (g) => `${g.requestId} ${g.model} ${g.workerId ?? ""}`, showGeneration);
  const more = (fleet.generationsUnderWay ?? 0) - generations.length;
  $("more").hidden = more <= 0;
  say($("more"), `and ${more} that began later`);
  offer(models.filter((m) => m.copies.some((c) => stateOf(c) === "ready")).map((m) => m.name));
}

function showGeneration(g, request, model, worker, tokens, age) {
  say(request, g.requestId);
  dress(request, "mono");
  say(model, g.model);
  say(worker, g.workerId || "waits for one");
  say(tokens, count(g.tokens));
  say(age, time(seconds(g.age)));
}

// tell shows the state of the page and of the scheduler.
function tell(says, how) {
  say($("link"), says);
  dress($("link"), how);
  document.querySelector("main").classList.toggle("stale", how === "down");
}

// follow shows the fleet as long as the page is open: twice a second, and a large one less often, since what is told of a thousand
// workers is more than a megabyte.
async function follow() {
  let pace = 0.5;
  following: for (;;) {
    let says = "the scheduler stops";
    try {
      for await (const told of call("WatchFleet", {interval: `${pace.toFixed(3)}s`, maxGenerations: 30})) {
        fleet = {...told, workers: told.workers ?? [], generations: told.generations ?? []};
        $("key").hidden = true;
        tell("live", "live");
        show();
        const due = Math.min(Math.max(fleet.workers.length / 400, 0.5), 5);
        if (due > 2 * pace) {
          pace = due;
          continue following;
        }
      }
    } catch (failure) {
      says = failure instanceof Failure ? failure.message : "the scheduler does not answer";
      if (["UNAUTHENTICATED", "PERMISSION_DENIED"].includes(failure.code)) {
        tell("a token is wanted", "down");
        await enter(hasToken() || failure.code === "PERMISSION_DENIED" ? failure.message : "");
        continue;
      }
    }
    tell(says, "down");
    await new Promise((again) => setTimeout(again, 1000));
  }
}

// enter waits for a token.
let entered = () => {};
function enter(why) {
  say($("refused"), why);
  $("key").hidden = false;
  return new Promise((then) => (entered = then));
}

$("key").onsubmit = (event) => {
  event.preventDefault();
  useToken($("token").value.trim());
  $("token").value = "";
  entered();
};

setInterval(sample, 1000);
follow();
