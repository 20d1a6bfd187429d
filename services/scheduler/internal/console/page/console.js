// The console: what a scheduler tells of its fleet, and a playground. Everything that others named or wrote becomes text and nothing
// else: nodes are made by make, and get their text by textContent.

const $ = (id) => document.getElementById(id);

// ---- Calls ----------------------------------------------------------------------------------------------------------------------

// The token is kept nowhere but here: whoever opens the page anew shows it anew.
let token = "";

// Failure is a call's status that is not OK.
class Failure extends Error {
  constructor({code, reason, message}) {
    super(message);
    this.code = code;
    this.reason = reason;
  }
}

// call makes a call of the scheduler and gives its answers one by one. Leaving the loop, or the signal, cancels the call.
async function* call(method, request, signal) {
  const headers = {"Content-Type": "application/json"};
  if (token) headers.Authorization = `Bearer ${token}`;
  const leave = new AbortController();
  const response = await fetch(`api/${method}`, {
    method: "POST", headers, body: JSON.stringify(request), signal: signal ? AbortSignal.any([signal, leave.signal]) : leave.signal,
  });
  try {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const {done, value} = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const {result, error} = JSON.parse(line);
        if (error) throw new Failure(error);
        yield result;
      }
    }
  } finally {
    leave.abort();
  }
}

// ---- Elements -------------------------------------------------------------------------------------------------------------------

// make makes an element with a class, a text and children.
function make(tag, name = "", text = "", ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text) node.textContent = text;
  node.append(...children);
  return node;
}

// say sets a text, and touches nothing where it is the same: a reader's selection stays.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// dress sets a class in the same way.
function dress(node, name) {
  if (node.className !== name) node.className = name;
}

// rows makes the body of a table one row for each item, in their order. A row stays the same element as long as its item is there, so
// that a focus in it does.
function rows(body, items, key, fill) {
  const labels = [...body.parentElement.querySelectorAll("th")].map((th) => th.textContent);
  const old = new Map([...body.children].map((row) => [row.dataset.key, row])), kept = new Set();
  let at = body.firstElementChild;
  for (const item of items) {
    let row = old.get(key(item));
    old.delete(key(item));
    if (!row) {
      row = make("tr");
      row.dataset.key = key(item);
      for (const label of labels) row.appendChild(make("td")).dataset.label = label;
    }
    if (row === at) at = at.nextElementSibling;
    else body.insertBefore(row, at);
    kept.add(row);
    fill(item, ...row.children);
  }
  for (const row of [...body.children]) if (!kept.has(row)) row.remove();
  body.parentElement.hidden = items.length === 0;
  body.parentElement.nextElementSibling.hidden = items.length > 0;
}

// part is the n-th child of a cell, made where it is missing.
function part(cell, n, tag = "div") {
  while (cell.children.length <= n) cell.append(make(tag));
  return cell.children[n];
}

// lines fills a cell: a text, and a note below it.
function lines(cell, text, note = "", noteClass = "note") {
  say(part(cell, 0), text);
  dress(part(cell, 1), noteClass);
  say(part(cell, 1), note);
}

// bar fills a cell with a bar of parts of a whole and a text below it.
function bar(cell, whole, parts, text) {
  const track = part(cell, 0);
  dress(track, "bar");
  parts.forEach(([name, amount, label], i) => {
    const piece = part(track, i, "span");
    dress(piece, name);
    piece.title = label;
    const width = `${(100 * share(amount, whole)).toFixed(2)}%`;
    if (piece.style.width !== width) piece.style.width = width;
  });
  dress(part(cell, 1), "note");
  say(part(cell, 1), text);
}

// ---- Numbers --------------------------------------------------------------------------------------------------------------------

const share = (amount, whole) => (whole > 0 ? Math.min(Math.max(amount / whole, 0), 1) : 0);
const number = (value) => Number(value ?? 0);
const seconds = (duration) => (duration === undefined ? undefined : parseFloat(duration));
const sum = (list, of) => list.reduce((total, item) => total + of(item), 0);
const three = (v) => (v < 10 && v % 1 ? v.toFixed(2) : v < 100 && v % 1 ? v.toFixed(1) : v.toFixed(0));

function scaled(value, step, units) {
  let i = 0;
  for (; value >= step && i < units.length - 1; i++) value /= step;
  return `${three(value)}${units[i]}`;
}
const bytes = (value) => scaled(number(value), 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
const count = (value) => scaled(number(value), 1000, ["", "k", "M", "G", "T"]);

function time(s) {
  if (s < 1) return `${three(s * 1000)} ms`;
  if (s < 120) return `${three(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return `${three(s / 3600)} h`;
}

// word is the word of an enum's value: WORKER_STATE_NOT_READY is "not ready".
const word = (value, prefix) => (value ?? "").replace(prefix, "").replaceAll("_", " ").toLowerCase();

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

function showWorker(w, name, state, device, memory, cache, sequences, rate, step, here) {
  const report = w.report ?? {}, load = loadOf(w), d = report.device ?? {};
  dress(name.parentElement, heard(w) ? "" : "gone");
  lines(name, report.workerId || w.address, report.workerId ? w.address : "");
  const is = heard(w) ? word(report.state, "WORKER_STATE_") : "unreachable";
  const checks = heard(w) ? (report.checks ?? []).filter((c) => !c.ok).map((c) => `${c.name}: ${c.message}`) : [];
  lines(state, is, [w.problem, ...checks].filter(Boolean).join("; "), "problem");
  dress(part(state, 0), `state ${heard(w) ? moods[is] ?? "bad" : "bad"}`);
  const readings = [d.kind];
  if (d.temperatureCelsius !== undefined) readings.push(`${d.temperatureCelsius} °C`);
  if (d.powerMilliwatts !== undefined) readings.push(`${Math.round(d.powerMilliwatts / 1000)} W`);
  lines(device, d.name || d.kind || "–", readings.filter(Boolean).join(" · "));
  if (!heard(w)) {
    for (const cell of [memory, cache, sequences, rate, step]) cell.replaceChildren();
    lines(here, String(w.inFlight ?? 0), w.age ? `silent for ${time(seconds(w.age))}` : "");
    return;
  }
  showMemory(memory, d);
  const total = number(load.totalBlocks), cached = number(load.cachedBlocks), held = total - number(load.freeBlocks);
  bar(cache, total, [["held", held, "held by sequences"], ["cached", cached, "cached prefixes"]],
    total ? `${Math.round(100 * share(held, total))} % held, ${Math.round(100 * share(cached, total))} % cached` : "no model");
  lines(sequences, `${load.running ?? 0} running`, load.waiting || load.paused ? `${load.waiting ?? 0} waiting, ${load.paused ?? 0} paused` : "");
  if (!rate.firstChild) rate.append(make("span"), sparkline());
  say(rate.firstChild, count(rateOf(w)));
  lines(step, ...stepOf(report.progress ?? {}));
  lines(here, String(w.inFlight ?? 0), number(w.outstandingTokens) ? `${count(w.outstandingTokens)} tokens left` : "");
}

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

// Changes that this page asked for, by model: {says, done, total, busy, failed}.
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

const stateOf = (copy) => word(copy.state, "MODEL_STATE_");

function showModel(m, name, state, digest, copies, memory, residency, sequences, change) {
  const about = m.copies[0]?.capabilities ?? m.files[0]?.capabilities ?? {};
  const usable = m.files.filter((f) => !f.problem);
  lines(name, m.name, [about.architecture, about.quantisation, about.parameters && `${count(about.parameters)} weights`,
    about.contextLength && `${count(m.copies[0]?.contextLength || about.contextLength)} tokens`].filter(Boolean).join(" · "));
  const states = [...new Set(m.copies.map(stateOf))];
  const problems = [...new Set([...m.copies, ...(m.copies.length ? [] : m.files)].map((c) => c.problem).filter(Boolean))];
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
  load.ariaDisabled = unload.ariaDisabled = String(Boolean(job.busy));
  load.onclick = () => change(m.name, "LoadModel", {model: m.name, replicas: m.copies.length + 1});
  const where = m.copies.length === 1 ? "its worker" : `its ${m.copies.length} workers`;
  unload.onclick = () => job.busy || sure(`Unload ${m.name} from ${where}? Requests for it are refused from then on.`,
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
  const job = {says: method === "LoadModel" ? "asked" : "unloading: running requests end first", busy: true};
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

// sure asks, and does what is asked about if the answer is yes.
function sure(question, then) {
  const dialog = $("sure");
  say($("question"), question);
  $("no").onclick = () => dialog.close();
  $("yes").onclick = () => {
    dialog.close();
    then();
  };
  dialog.showModal();
}

// ---- The fleet ------------------------------------------------------------------------------------------------------------------

// show shows what the scheduler told last.
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
  const name = (w) => `${heard(w) ? 0 : 1}${w.report?.workerId ?? ""} ${w.address}`;
  rows($("workers"), [...workers].sort((a, b) => (name(a) < name(b) ? -1 : 1)), (w) => w.address, showWorker);
  const models = modelsOf(workers);
  rows($("models"), models, (m) => m.name, showModel);
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

// tell says how the page and the scheduler stand.
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
        await enter(token || failure.code === "PERMISSION_DENIED" ? failure.message : "");
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
  token = $("token").value.trim();
  $("token").value = "";
  entered();
};

// ---- The playground -------------------------------------------------------------------------------------------------------------

// What stops the run under way, if there is one, and the last run that can be made again: {request, ids}.
let stopper, first;

// offer offers the models that serve, the first of them where nobody has chosen.
function offer(names) {
  const list = $("names");
  if ([...list.children].map((o) => o.value).join("\n") === names.join("\n")) return;
  list.replaceChildren(...names.map((name) => Object.assign(make("option"), {value: name})));
  if (!$("model").value && names.length) $("model").value = names[0];
}

// asked is the request that the form says.
function asked() {
  const request = {
    model: $("model").value,
    sampling: {temperature: Number($("temperature").value), topP: Number($("top-p").value)},
    stopping: {maxTokens: Number($("tokens").value)},
    response: {outputLogprobs: true},
  };
  if ($("seed").value) request.sampling.seed = $("seed").value;
  if ($("chat").checked) request.chat = {messages: [{role: "user", content: $("prompt").value}]};
  else request.prompt = $("prompt").value;
  return request;
}

// shade is the class of a probability.
const shade = (p) => (p < 0.05 ? "p0" : p < 0.2 ? "p1" : p < 0.5 ? "p2" : p < 0.9 ? "p3" : "");

// pieces are the texts of an event's tokens, each of the shade of its probability.
function pieces({text = "", tokenIds = [], details = []}) {
  const all = new TextEncoder().encode(text);
  let from = 0;
  return tokenIds.map((id, i) => {
    const {logprob, rank, textBytes = 0} = details[i], likely = Math.exp(Number(logprob));
    const end = i + 1 < tokenIds.length ? from + textBytes : all.length; // a worker of an older release does not say
    const node = make("span", shade(likely), new TextDecoder().decode(all.subarray(from, end)));
    from = end;
    node.title = `token ${id}: ${(100 * likely).toPrecision(3)} %, rank ${rank}`;
    return node;
  });
}

// pen writes nodes into an element, which stays scrolled to its end. Each time the browser lays all of the element out anew, so what
// is written waits for four times as long as the last layout took, and layouts have at most a fifth of the page's time.
function pen(into) {
  const waiting = new DocumentFragment();
  let due = 0, timer;
  const flush = () => {
    const begun = performance.now();
    timer = undefined;
    into.append(waiting);
    into.scrollTop = into.scrollHeight; // lays out
    due = performance.now() + 4 * (performance.now() - begun);
  };
  return {
    write(nodes) {
      waiting.append(...nodes);
      timer ??= setTimeout(flush, Math.max(due - performance.now(), 16));
    },
    end() {
      clearTimeout(timer);
      flush();
    },
  };
}

// generate streams the answer to a request into an element, and gives its ids and what began and ended it. With ids of a run before,
// the first token that differs is marked.
async function generate(request, into, status, before) {
  const run = {ids: [], started: undefined}, answer = pen(into);
  const begun = performance.now();
  let firstToken = 0, finished, differs = -1;
  stopper = new AbortController();
  allow();
  into.replaceChildren();
  dress(status, "");
  say(status, "waiting for the first token");
  try {
    for await (const event of call("Generate", request, stopper.signal)) {
      if (event.started) run.started = event.started;
      if (event.finished) finished = event.finished;
      if (!event.tokens) continue;
      firstToken ||= performance.now();
      const nodes = pieces(event.tokens), from = run.ids.length;
      run.ids.push(...event.tokens.tokenIds);
      if (before && differs < 0) {
        differs = run.ids.findIndex((id, i) => i >= from && id !== before[i]);
        nodes[differs - from]?.classList.add("differs");
      }
      answer.write(nodes);
      say(status, "streaming");
    }
    run.says = told(run, begun, firstToken, `ended by ${word(finished?.reason, "FINISH_REASON_")}`);
  } catch (failure) {
    const stopped = failure.name === "AbortError";
    run.stopped = true;
    dress(status, stopped ? "" : "bad");
    run.says = stopped ? told(run, begun, firstToken, "stopped") : `${failure.message}${failure.reason ? ` (${failure.reason})` : ""}`;
  }
  answer.end();
  say(status, run.says);
  stopper = undefined;
  allow();
  return run;
}

// told is what there is to say of a run.
function told({ids, started}, begun, firstToken, end) {
  const took = (performance.now() - firstToken) / 1000;
  return [`${ids.length} tokens, ${end}`, firstToken && `first after ${time((firstToken - begun) / 1000)}`,
    ids.length > 1 && took > 0 && `${count((ids.length - 1) / took)} tokens/s`, started && `seed ${started.seed}`,
    started && `on ${started.workerId}`, started?.cachedTokens && `${started.cachedTokens} of ${started.promptTokens} prompt tokens cached`,
  ].filter(Boolean).join(" · ");
}

// allow says which buttons do something. The others keep the focus, if they have it: where it is, is the reader's.
function allow() {
  for (const [id, is] of [["go", !stopper], ["stop", stopper], ["repeat", !stopper && first]]) $(id).ariaDisabled = String(!is);
}

async function start(event) {
  event.preventDefault();
  if (stopper || !$("ask").reportValidity()) return;
  $("second").hidden = true;
  first = undefined;
  const request = asked();
  const run = await generate(request, $("answer"), $("said"));
  if (!run.started || run.stopped) return;
  first = {request: {...request, sampling: {...request.sampling, seed: run.started.seed}}, ids: run.ids};
  allow();
}

// repeat runs the last request again with the seed that it had, and compares every token.
async function repeat() {
  if (stopper || !first) return;
  const {request, ids} = first, status = $("compared");
  $("second").hidden = false;
  const run = await generate(request, $("again"), status, ids);
  if (run.stopped) return;
  const at = ids.findIndex((id, i) => id !== run.ids[i]), same = at < 0 && ids.length === run.ids.length;
  dress(status, same ? "good" : "bad");
  say(status, `${same ? `all ${ids.length} tokens are the same` : `differs from token ${at < 0 ? ids.length : at} on`} · ${run.says}`);
}

$("ask").onsubmit = start;
$("stop").onclick = () => stopper?.abort();
$("repeat").onclick = repeat;
$("coloured").onchange = colour;
document.onkeydown = (event) => {
  if (event.key === "Escape") stopper?.abort();
  if (event.key === "Enter" && event.ctrlKey && $("playground").contains(event.target)) start(event);
};

function colour() {
  for (const node of [$("answer"), $("again")]) node.classList.toggle("coloured", $("coloured").checked);
  $("legend").hidden = !$("coloured").checked;
}

colour();
allow();
setInterval(sample, 1000);
follow();
