// The playground: streams an answer, colours it, and runs it again.

import {$, call, count, dress, make, say, time, word} from "./parts.js";

// What stops the run under way, if there is one, and the last run that can be made again: {request, ids}.
let stopper, first;

// offer offers the models that serve, the first of them if none was chosen.
export function offer(names) {
  const list = $("names");
  if ([...list.children].map((o) => o.value).join("\n") === names.join("\n")) return;
  list.replaceChildren(...names.map((name) => Object.assign(make("option"), {value: name})));
  if (!$("model").value && names.length) $("model").value = names[0];
}

// asked returns the request of the form.
function asked() {
  const request = {
    model: $("model").value,
    sampling: {temperature: Number($("temperature").value), topP: Number($("top-p").value)},
    stopping: {maxTokens: Number($("tokens").value)},
    response: {outputLogprobs: true},
  };
  if ($("seed").value) request.sampling.seed = $("seed").value;
  if (!$("chat").checked) return {...request, prompt: $("prompt").value};
  request.response.parts = true;
  request.chat = {messages: [{role: "user", content: $("prompt").value}], tools: offered()};
  if ($("must").checked && request.chat.tools.length) request.chat.toolChoice = {mode: "TOOL_MODE_REQUIRED"};
  return request;
}

// offered returns the tools of the form, which may be those of OpenAI's API.
const offered = () => JSON.parse($("tools").value || "[]").map((tool) => {
  const {name, description, parameters, strict} = tool.function ?? tool;
  return {name, description, parameters: typeof parameters === "object" ? JSON.stringify(parameters) : parameters, strict};
});

// check tells the form whether its tools can be read.
function check() {
  let problem = "";
  try {
    offered();
  } catch {
    problem = "Tools are a JSON list of functions.";
  }
  $("tools").setCustomValidity($("chat").checked ? problem : "");
}

// shade is the class of a probability.
const shade = (p) => (p < 0.05 ? "p0" : p < 0.2 ? "p1" : p < 0.5 ? "p2" : p < 0.9 ? "p3" : "");

// pieces are the texts of an event's tokens, each of the shade of its probability: for each token a list of {node, part}, because
// a token may belong to several parts. Without parts, all is content.
function pieces({text = "", tokenIds = [], details = [], parts = []}) {
  const all = new TextEncoder().encode(text);
  const runs = parts.length ? parts.map((part) => ({...part})) : [{textBytes: all.length}];
  let from = 0, end = 0;
  return tokenIds.map((id, i) => {
    const {logprob, rank, textBytes = 0} = details[i], likely = Math.exp(Number(logprob)), nodes = [];
    end = i + 1 < tokenIds.length ? end + textBytes : all.length; // a worker of an older release does not say
    do {
      const [run] = runs, upTo = Math.min(end, from + (run?.textBytes ?? 0));
      const node = make("span", shade(likely), new TextDecoder().decode(all.subarray(from, upTo)));
      node.title = `token ${id}: ${(100 * likely).toPrecision(3)} %, rank ${rank}`;
      nodes.push({node, part: {...run}});
      if (!run) break;
      run.textBytes = (run.textBytes ?? 0) - (upTo - from);
      run.call = undefined; // what follows goes on with it
      from = upTo;
      if (run.textBytes > 0) break;
      runs.shift();
    } while (runs.length && (from < end || !runs[0].textBytes));
    return nodes;
  });
}

// shelf puts pieces where their parts belong: content into the answer, reasoning into a fold, and arguments behind the name of
// their tool.
function shelf(answer) {
  let kind = "PART_KIND_CONTENT", box;
  return ({node, part}) => {
    if (part.call || (part.kind ?? kind) !== kind) {
      kind = part.kind;
      box = undefined;
      if (kind === "PART_KIND_REASONING") box = make("details", "part", "", make("summary", "", "Reasoning"));
      if (kind === "PART_KIND_TOOL_CALL") box = make("div", "part", "", make("b", "", `${part.call?.name ?? ""} `));
      if (box) answer.write([box]);
    }
    if (box) box.append(node);
    else answer.write([node]);
  };
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
  const run = {ids: [], started: undefined}, answer = pen(into), put = shelf(answer);
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
        nodes[differs - from]?.forEach(({node}) => node.classList.add("differs"));
      }
      nodes.flat().forEach(put);
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

// told returns the summary of a run.
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
$("tools").oninput = check;
$("chat").onchange = () => {
  for (const node of document.querySelectorAll(".offer")) node.hidden = !$("chat").checked;
  check();
};
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
