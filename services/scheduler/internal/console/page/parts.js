// What both halves of the page share: calls of the scheduler, elements and numbers. Everything that others named or wrote becomes text
// and nothing else: make creates nodes, and sets their text by textContent.

export const $ = (id) => document.getElementById(id);

// ---- Calls ----------------------------------------------------------------------------------------------------------------------

// The token is stored only here: a reload of the page asks for it again.
let token = "";
export const useToken = (shown) => (token = shown);
export const hasToken = () => token !== "";

// Failure is a call's status that is not OK.
export class Failure extends Error {
  constructor({code, reason, message}) {
    super(message);
    this.code = code;
    this.reason = reason;
  }
}

// call makes a call of the scheduler and gives its answers one by one. Leaving the loop, or the signal, cancels the call.
export async function* call(method, request, signal) {
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
export function make(tag, name = "", text = "", ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text) node.textContent = text;
  node.append(...children);
  return node;
}

// say sets a text, and touches nothing where it is the same: a reader's selection stays.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// dress sets a class in the same way.
export function dress(node, name) {
  if (node.className !== name) node.className = name;
}

// rows makes the body of a table one row for each item, in their order. A row stays the same element as long as its item is there, so
// that a focus in it does.
export function rows(body, items, key, fill) {
  const heads = [...body.parentElement.querySelectorAll("th")];
  const old = new Map([...body.children].map((row) => [row.dataset.key, row])), kept = new Set();
  let at = body.firstElementChild;
  for (const item of items) {
    let row = old.get(key(item));
    old.delete(key(item));
    if (!row) {
      row = make("tr");
      row.dataset.key = key(item);
      for (const head of heads) {
        const cell = row.appendChild(make("td"));
        cell.dataset.label = head.dataset.label ?? head.textContent;
        cell.title = (head.querySelector("[title]") ?? head).title;
      }
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
export function part(cell, n, tag = "div") {
  while (cell.children.length <= n) cell.append(make(tag));
  return cell.children[n];
}

// lines fills a cell: a text, and a note below it.
export function lines(cell, text, note = "", noteClass = "note") {
  say(part(cell, 0), text);
  dress(part(cell, 1), noteClass);
  say(part(cell, 1), note);
  part(cell, 1).title = noteClass === "problem" ? note : "";
}

// bar fills a cell with a bar of parts of a whole and a text below it.
export function bar(cell, whole, parts, text) {
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

export const share = (amount, whole) => (whole > 0 ? Math.min(Math.max(amount / whole, 0), 1) : 0);
export const number = (value) => Number(value ?? 0);
export const seconds = (duration) => (duration === undefined ? undefined : parseFloat(duration));
export const sum = (list, of) => list.reduce((total, item) => total + of(item), 0);
export const three = (v) => (v < 10 && v % 1 ? v.toFixed(2) : v < 100 && v % 1 ? v.toFixed(1) : v.toFixed(0));

export function scaled(value, step, units) {
  let i = 0;
  for (; value >= step && i < units.length - 1; i++) value /= step;
  return `${three(value)}${units[i]}`;
}
export const bytes = (value) => scaled(number(value), 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
export const count = (value) => scaled(number(value), 1000, ["", "k", "M", "G", "T"]);

export function time(s) {
  if (s < 1) return `${three(s * 1000)} ms`;
  if (s < 120) return `${three(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return `${three(s / 3600)} h`;
}

// word is the word of an enum's value: WORKER_STATE_NOT_READY is "not ready".
export const word = (value, prefix) => (value ?? "").replace(prefix, "").replaceAll("_", " ").toLowerCase();

// contexts returns the longest context of a model's ready copies, and a sentence for each digest whose copies have different ones.
export function contexts(copies) {
  const ready = copies.filter((c) => word(c.state, "MODEL_STATE_") === "ready" && c.contextLength);
  const workers = new Map(); // by context, by digest
  for (const c of ready) {
    const of = workers.get(c.modelDigest) ?? workers.set(c.modelDigest, new Map()).get(c.modelDigest);
    of.set(c.contextLength, [...(of.get(c.contextLength) ?? []), c.worker]);
  }
  const differ = [...workers.values()].filter((of) => of.size > 1).map((of) => [...of].sort((a, b) => b[0] - a[0]))
    .map((of) => `contexts differ: ${of.map(([n, ids]) => `${n} on ${ids.join(", ")}`).join("; ")}; requests without max_tokens go to the longest alone`);
  return {longest: Math.max(0, ...ready.map((c) => c.contextLength)), differ};
}
