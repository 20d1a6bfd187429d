package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// report is the report of a ready worker with a model, with names as long as real ones.
func report(id string) *pb.WorkerReport {
	load := &pb.LoadStatus{TotalBlocks: 4096, FreeBlocks: 1000, CachedBlocks: 500, Running: 128, Waiting: 32, Paused: 4, TokensPerSecond: 12345}
	return &pb.WorkerReport{
		WorkerId: id, Incarnation: id, ClassId: "cpu", State: pb.WorkerState_WORKER_STATE_READY,
		Device: &pb.DeviceStatus{Kind: "cpu", Name: "AMD EPYC 9654 96-Core Processor, 8 threads, computed by AVX-512", BytesTotal: 64 << 30, BytesFree: 3 << 30},
		Load:   load,
		Models: []*pb.ModelStatus{{
			Name: "meta-llama-3.1-8b-instruct-q4_k_m", ModelDigest: strings.Repeat("5277", 16), State: pb.ModelState_MODEL_STATE_READY,
			Capabilities: &pb.ModelCapabilities{Architecture: "llama", Quantisation: "Q4_K", Parameters: 8_030_261_248, ContextLength: 131072},
		}},
		Files: []*pb.ModelFile{
			{Name: "meta-llama-3.1-8b-instruct-q4_k_m"}, {Name: "qwen2.5-coder-32b-instruct-q5_k_m"},
			{Name: "garbage", Problem: `the file is text ("garbage") and no model: download the model again, by its direct link`},
		},
	}
}

// spilled lists the parts of the page that lie outside of their container, or are squeezed: a table
// beyond its card, a heading beyond its table, and a table row so high that its words must have
// been broken.
const spilled = `(() => {
  const found = [], seen = (e) => e.checkVisibility() && e.getBoundingClientRect().width > 1;
  const inside = (e, box) => {
    const a = e.getBoundingClientRect(), b = box.getBoundingClientRect();
    if (a.right > b.right + 1 || a.left < b.left - 1) found.push((e.id || e.tagName) + " " + e.textContent.trim().slice(0, 20) + " leaves " + (box.id || box.tagName));
  };
  for (const table of document.querySelectorAll("table")) {
    if (!seen(table)) continue;
    inside(table, table.closest("section"));
    const columns = getComputedStyle(table).display === "table";
    for (const e of table.querySelectorAll(columns ? "th, td, td *" : "td, td *")) if (seen(e) && !e.closest("svg")) inside(e, e.closest("td, th") ?? table);
    for (const e of table.querySelectorAll("th, td")) if (seen(e) && columns) inside(e, table);
    for (const row of table.querySelectorAll("tbody tr")) {
      const high = row.getBoundingClientRect().height;
      if (high > (columns ? 130 : 420)) found.push(row.textContent.slice(0, 20) + " is " + high + " px high");
    }
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page is " + document.documentElement.scrollWidth + " px wide");
  return found;
})()`

func TestConsoleFitsEveryWidth(t *testing.T) {
	t.Parallel()
	_, p := consoled(t, []*server{reporting(t, report("gpu-node-07.europe-west4-b")), reporting(t, report("w2")), {address: freeAddress(t)}})
	p.until(`document.getElementById("ready").textContent === "2 of 3"`)
	p.click("#unusable")
	for width := int64(320); width <= 2000; width += 7 { // steps of 7 reach every layout and keep the test short
		p.do(chromedp.EmulateViewport(width, 900))
		require.Empty(t, value[[]string](p, spilled), "%d px wide", width)
	}
	for _, width := range []int64{360, 820, 938, 1000, 1040, 1440} {
		p.do(chromedp.EmulateViewport(width, 900))
		p.shoot(fmt.Sprint("width-", width))
	}
}

// small lists controls less than 24 px high, WCAG 2.2's minimum for a target, texts smaller than 12
// px, and table headings without a scope.
const small = `(() => {
  const found = [];
  for (const e of document.querySelectorAll("button, .checks label")) {
    const high = e.getBoundingClientRect().height;
    if (e.checkVisibility() && high > 0 && high < 24) found.push(e.textContent + " is " + high + " px high");
  }
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const size = parseFloat(getComputedStyle(node.parentElement).fontSize);
    if (node.textContent.trim() && size < 12) found.push(node.textContent.trim() + " is " + size + " px");
  }
  for (const td of document.querySelectorAll("td")) if (parseFloat(getComputedStyle(td, "::before").fontSize) < 12) found.push("label of " + td.dataset.label);
  for (const th of document.querySelectorAll("th")) if (th.scope !== "col") found.push(th.textContent + " has no scope");
  return found;
})()`

func TestConsoleControlsAreLargeEnough(t *testing.T) {
	t.Parallel()
	_, p := consoled(t, []*server{reporting(t, report("w1"))})
	p.until(`document.querySelectorAll("#models tr").length === 2`)
	for _, width := range []int64{1280, 400} {
		p.do(chromedp.EmulateViewport(width, 900))
		require.Empty(t, value[[]string](p, small), "%d px wide", width)
	}
	for _, label := range []string{"Step", "Streams here"} {
		require.NotEmpty(t, value[string](p, fmt.Sprintf(`document.querySelector("#fleet th[data-label='%s'] button").title`, label)), label)
	}
}

func TestConsoleColumnsStayWhenNumbersChange(t *testing.T) {
	t.Parallel()
	_, p := consoled(t, []*server{reporting(t, report("w1"))})
	p.until(`document.getElementById("ready").textContent === "1 of 1"`)
	const columns = `[...document.querySelectorAll("th, #totals > div")].map((th) => Math.round(th.getBoundingClientRect().left)).join(" ")`
	before := value[string](p, columns)
	require.Equal(t, before, value[string](p, `(() => {
  for (const td of document.querySelectorAll("td > :first-child")) if (/^[\d.]+/.test(td.textContent)) td.textContent = "1";
  for (const dd of document.querySelectorAll("#running, #waiting, #streams, #cache, #rate")) dd.textContent = "0";
  return `+columns+`})()`))
}

func TestConsoleSortsAndFiltersWorkers(t *testing.T) {
	t.Parallel()
	var workers []*server
	for i, id := range []string{"a", "b", "c", "d", "e"} {
		r := report(id)
		r.Load.TokensPerSecond = float64([]int{30, 10, 50, 20, 40}[i])
		workers = append(workers, reporting(t, r))
	}
	_, p := consoled(t, workers)
	const ids = `[...document.querySelectorAll("#workers tr")].map((tr) => tr.querySelector("td > div").textContent).join("")`
	p.until(ids + ` === "abcde"`)
	p.click(`#fleet button[data-sort=rate]`)
	require.Equal(t, "ceadb", value[string](p, ids), "the fastest first")
	require.Equal(t, "descending", value[string](p, `document.querySelector("#fleet th[data-label='Tokens/s']").ariaSort`))
	p.click(`#fleet button[data-sort=rate]`)
	require.Equal(t, "bdaec", value[string](p, ids))
	p.set("filter", workers[3].address)
	p.until(ids + ` === "d"`)
	require.Equal(t, "1 of 5 workers", p.text("shown"))
	p.set("filter", "nobody")
	p.until(`document.getElementById("rack").innerText.includes("No worker has these words")`)
}

func TestConsoleDrainsAndUndrainsAWorker(t *testing.T) {
	t.Parallel()
	_, p := consoled(t, []*server{startWorker(t, "w1", paced...), startWorker(t, "w2", paced...)})
	p.until(`document.getElementById("ready").textContent === "2 of 2"`)
	p.click(`[aria-label="Drain w1"]`)
	require.Contains(t, p.text("question"), "Drain w1?")
	require.Equal(t, "Drain", p.text("yes"))
	p.click("#no")
	require.False(t, value[bool](p, `document.getElementById("sure").open`))
	p.click(`[aria-label="Drain w1"]`)
	p.click("#yes")
	p.until(`document.getElementById("ready").textContent === "1 of 2"`)
	p.click(`[aria-label="Undrain w1"]`)
	p.until(`document.getElementById("ready").textContent === "2 of 2"`)
	p.click(`[aria-label="Unload long"]`)
	require.NotEqual(t, value[string](p, `getComputedStyle(document.getElementById("yes")).backgroundColor`),
		value[string](p, `getComputedStyle(document.getElementById("no")).backgroundColor`), "what cannot be undone looks so")
}

// The page shows the parts of an answer: reasoning folded, and calls by the name of their tool and their arguments, which are
// text whatever is in them.
func TestConsoleShowsReasoningAndCalls(t *testing.T) {
	t.Parallel()
	models := t.TempDir()
	file, err := os.ReadFile(filepath.Join(modelsDir, stories+".gguf"))
	require.NoError(t, err)
	const thinks = `{#- <think> </think> #}{{ messages[-1].content }}<think>`
	for name, template := range map[string]string{"calls": toolTemplates["hermes"], "thinks": thinks} {
		require.NoError(t, os.WriteFile(filepath.Join(models, name+".gguf"), withTemplate(t, file, template), 0o600))
	}
	_, p := consoled(t, []*server{startWorkerOf(t, models, "w1", "--device", "cpu", "--load", "calls", "--load", "thinks")})
	p.until(`document.getElementById("names").children.length === 2`)
	p.set("seed", "7")
	p.set("model", "thinks")
	p.set("tokens", "30")
	p.click("#chat")
	p.click("#go")
	text := p.answered("said", "answer")
	require.Contains(t, p.text("said"), "30 tokens")
	require.Equal(t, text, value[string](p, `document.querySelector("#answer > details:not([open])").textContent`))
	require.Equal(t, "Reasoning", value[string](p, `document.querySelector("#answer details summary").textContent`))
	require.Greater(t, len(text), len("Reasoning")+30)

	p.set("model", "calls")
	p.set("tokens", "400")
	p.click("#must")
	p.set("tools", "[{")
	p.click("#go")
	require.False(t, value[bool](p, `document.getElementById("ask").checkValidity()`), "what is no JSON is not sent")
	p.set("tools", fmt.Sprintf(`[{"type":"function","function":{"name":"show","parameters":{"properties":{"text":{"enum":[%q]}},"required":["text"],"additionalProperties":false}}}]`, markup))
	p.click("#go")
	p.until(`document.querySelector("#answer > div.part b")?.textContent === "show "`)
	p.answered("said", "answer")
	require.Contains(t, p.text("answer"), strings.ReplaceAll(markup, `"`, `\"`))
	require.Zero(t, value[int](p, `document.querySelectorAll("#answer img, #answer script").length`))
	calls := value[string](p, `document.getElementById("answer").textContent`)
	p.click("#repeat")
	require.Equal(t, calls, p.answered("compared", "again"))
	require.Contains(t, p.text("compared"), "are the same")
	require.Empty(t, value[[]string](p, small))
}
