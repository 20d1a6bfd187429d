package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
)

// consoled starts a scheduler with a console and opens the console.
func consoled(t *testing.T, workers []*server, args ...string) (*server, *tab) {
	t.Helper()
	b := openBrowser(t)
	address := freeAddress(t)
	s := startScheduler(t, workers, append(args, "--console-listen", address)...)
	return s, b.open(t, address)
}

func TestTheConsoleShowsAWorkerComeAndGo(t *testing.T) {
	t.Parallel()
	first := startWorker(t, "first", quick...)
	later := &server{binary: workerBinary, address: freeAddress(t),
		args: append([]string{"--models", modelsDir, "--worker-id", "later", "--threads", "1"}, quick...)}
	_, p := consoled(t, []*server{first, later})
	p.until(`document.getElementById("ready").textContent === "1 of 2"`)
	for _, address := range []string{first.address, later.address} {
		p.until(fmt.Sprintf(`document.getElementById("workers").textContent.includes(%q)`, address))
	}
	require.True(t, later.start(t), "its port is taken")
	took := p.until(`document.getElementById("ready").textContent === "2 of 2"`)
	p.until(`document.getElementById("workers").textContent.includes("later")`)
	later.kill()
	went := p.until(`document.getElementById("ready").textContent === "1 of 2"`)
	p.until(`[...document.querySelectorAll("#workers tr.gone")].some(row => row.textContent.includes("later") && row.textContent.includes("unreachable"))`)
	t.Logf("shown %v after it was ready, and gone %v after it was killed", took, went)
}

// answered waits for the end of a run, and returns its text.
func (p *tab) answered(status, answer string) string {
	p.Helper()
	p.until(fmt.Sprintf(`document.getElementById("stop").ariaDisabled === "true" && document.getElementById(%q).textContent`, status))
	return p.text(answer)
}

func TestTheConsoleStreamsAStoryAndTheSameAgain(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", "--device", "cpu", "--load", stories)
	s, p := consoled(t, []*server{w})
	p.until(`document.getElementById("model").value === "stories"`)
	for id, text := range map[string]string{"prompt": "Tom had a big red", "seed": "18446744073709551615", "tokens": "40"} {
		p.set(id, text)
	}
	p.click("#go")
	text := p.answered("said", "answer")
	require.Contains(t, p.text("said"), "40 tokens, ended by length")
	require.Contains(t, p.text("said"), "seed 18446744073709551615")
	require.Contains(t, p.text("said"), "on w1")

	// The same by gRPC.
	in := ask(stories, 40)
	in.Input = &pb.GenerateRequest_Prompt{Prompt: "Tom had a big red"}
	in.Sampling = &pb.Sampling{Temperature: ptr(float32(0.7)), TopP: ptr(float32(0.9)), Seed: ptr(uint64(18446744073709551615))}
	in.Stopping.IgnoreEos = nil
	want := generate(within(t), s.infer, in)
	require.NoError(t, want.err)
	require.Equal(t, want.text, text)

	require.Equal(t, len(want.ids), value[int](p, `document.querySelectorAll("#answer span").length`), "each token is coloured alone")
	require.Positive(t, value[int](p, `document.querySelectorAll("#answer span.p0, #answer span.p1, #answer span.p2, #answer span.p3").length`))
	require.Regexp(t, `^token \d+: [\d.]+ %, rank \d+$`, value[string](p, `document.querySelector("#answer span").title`))
	const shade = `getComputedStyle(document.querySelector("#answer .p2, #answer .p1, #answer .p3, #answer .p0")).backgroundColor`
	const none = "rgba(0, 0, 0, 0)"
	require.NotEqual(t, none, value[string](p, shade))
	p.click("#coloured")
	require.Equal(t, none, value[string](p, shade), "colours can be had off")

	p.click("#repeat")
	require.Equal(t, text, p.answered("compared", "again"))
	require.Contains(t, p.text("compared"), "all 40 tokens are the same")
	require.Equal(t, value[string](p, `document.getElementById("answer").innerHTML`), value[string](p, `document.getElementById("again").innerHTML`),
		"the probabilities are the same, however the tokens came")

	// The second run uses the seed that the first one drew.
	p.set("seed", "")
	p.click("#go")
	drawn := p.answered("said", "answer")
	p.click("#repeat")
	require.Equal(t, drawn, p.answered("compared", "again"))
	require.Contains(t, p.text("compared"), "are the same")

	// The page shows why a request was refused.
	p.set("model", "nobody's")
	p.click("#go")
	require.Empty(t, p.answered("said", "answer"))
	require.Contains(t, p.text("said"), "UNKNOWN_MODEL")
	p.forgive("404")
}

func TestTheConsoleCancelsWhatIsStopped(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s, p := consoled(t, []*server{w})
	p.until(`document.getElementById("model").value === "long"`)
	p.set("tokens", "60000")
	p.click("#go")
	p.until(`document.querySelectorAll("#answer span").length > 20`)
	p.until(`document.querySelectorAll("#generations tr").length === 1 && document.getElementById("streams").textContent === "1"`)
	require.Contains(t, p.text("generations"), "w1")
	s.until(t, "it runs", func(fleet []*pb.FleetWorker) bool { return fleet[0].GetReport().GetLoad().GetRunning() == 1 })
	p.click("#stop")
	p.until(`document.getElementById("said").textContent.includes("tokens, stopped")`)
	s.until(t, "its worker has counted it as cancelled", func(fleet []*pb.FleetWorker) bool {
		load := fleet[0].GetReport().GetLoad()
		return load.GetCancelled() == 1 && load.GetRunning() == 0 && load.GetStepsAfterCancel() == 0
	})
	p.until(`document.querySelectorAll("#generations tr").length === 0 && document.getElementById("streams").textContent === "0"`)
}

// The tokens of a long answer come faster than a page can lay itself out for each. The page must
// show them as they come and react to clicks at the same time.
func TestTheConsoleListensWhileALongAnswerComes(t *testing.T) {
	t.Parallel()
	// At most 2 000 tokens a second: the answer takes half a minute at least, so that it never ends before the click.
	w := startWorker(t, "w1", "--device", "sim:step=500us,prefill=0s,decode=0s", "--load", long)
	_, p := consoled(t, []*server{w})
	p.until(`document.getElementById("model").value === "long"`)
	p.set("tokens", "60000")
	p.click("#go")
	p.until(`document.querySelectorAll("#answer span").length > 4000`)
	p.click("#stop")
	p.until(`document.getElementById("said").textContent.includes("tokens, stopped")`)
	require.True(t, value[bool](p, `document.querySelectorAll("#answer span").length === Number.parseInt(document.getElementById("said").textContent)`),
		"what came is all there")
}

func TestTheKeyboardAloneSufficesForTheConsole(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	_, p := consoled(t, []*server{w})
	p.until(`document.getElementById("model").value === "long"`)

	p.reach(`at.className === "skip"`)
	p.press(kb.Enter)
	p.until(`document.activeElement.id === "playground"`)
	p.reach(`at.id === "prompt"`)
	p.press(kb.End)
	p.press(" and again")
	require.Equal(t, "Once upon a time and again", value[string](p, `document.getElementById("prompt").value`))
	p.reach(`at.id === "tokens"`)
	p.press("60000") // replaces the old value, which Tab selects
	p.reach(`at.id === "go"`)
	p.press(kb.Enter)
	p.until(`document.querySelectorAll("#answer span").length > 5`)
	require.Equal(t, "go", value[string](p, `document.activeElement.id`), "the focus stays")
	p.reach(`at.id === "stop"`)
	p.press(" ")
	p.until(`document.getElementById("said").textContent.includes("tokens, stopped")`)
	p.do(chromedp.Evaluate[chromedp.Void](`document.getElementById("prompt").focus()`))
	p.press(kb.Enter, chromedp.KeyModifiers(chromedp.ModifierCtrl))
	p.until(`document.getElementById("stop").ariaDisabled === "false"`)
	p.press(kb.Escape)
	p.until(`document.getElementById("said").textContent.includes("tokens, stopped")`)

	const row = `[...document.querySelectorAll("#models tr")].find(row => row.dataset.key === "stories")`
	p.do(chromedp.Evaluate[chromedp.Void](`document.activeElement.blur()`))
	p.reach(`at.ariaLabel === "Load stories"`)
	p.press(kb.Enter)
	p.until(row + `.textContent.includes("loaded on w1")`)
	p.until(row + `.querySelector(".state").textContent === "ready"`)
	p.reach(`at.ariaLabel === "Unload stories"`)
	p.press(kb.Enter)
	p.until(`document.getElementById("sure").open && document.getElementById("question").textContent.includes("stories")`)
	p.press(kb.Escape)
	p.until(`!document.getElementById("sure").open`)
	p.until(`document.activeElement.ariaLabel === "Unload stories"`)
	p.press(kb.Enter)
	p.until(`document.getElementById("sure").open`)
	p.reach(`at.id === "yes"`)
	p.press(kb.Enter)
	p.until(row + `.textContent.includes("unloaded from w1")`)
	p.until(row + `.querySelector(".state").textContent === "on disk"`)
}

// markup is a text that would do harm if a page rendered it as markup.
const markup = `<img src=x onerror="document.title='taken'"><script>document.title='taken'</script>`

// impostor is a worker that only reports.
type impostor struct {
	pb.UnimplementedWorkerServiceServer
	report *pb.WorkerReport
}

func (i impostor) Health(stream grpc.BidiStreamingServer[pb.HealthRequest, pb.HealthResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	for sequence := uint64(1); ; sequence++ {
		out := &pb.HealthResponse{Sequence: sequence, Event: &pb.HealthResponse_Full{Full: i.report}}
		if err := stream.Send(out); err != nil {
			return err
		}
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// reporting serves an impostor until the test ends.
func reporting(t *testing.T, report *pb.WorkerReport) *server {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	pb.RegisterWorkerServiceServer(s, impostor{report: report})
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	return &server{address: lis.Addr().String()}
}

func TestWhatOthersNameIsTextInTheConsole(t *testing.T) {
	t.Parallel()
	_, p := consoled(t, []*server{reporting(t, &pb.WorkerReport{
		WorkerId: markup, Incarnation: "1", ClassId: markup, State: pb.WorkerState_WORKER_STATE_DEGRADED,
		Checks: []*pb.HealthCheck{{Name: markup, Message: markup}},
		Device: &pb.DeviceStatus{Kind: markup, Name: markup, BytesTotal: 100}, Load: &pb.LoadStatus{},
		Models: []*pb.ModelStatus{{
			Name: markup, ModelDigest: markup, State: pb.ModelState_MODEL_STATE_READY, Problem: markup,
			Capabilities: &pb.ModelCapabilities{Architecture: markup, Quantisation: markup},
		}},
		Files: []*pb.ModelFile{{Name: "__proto__", Problem: markup}, {Name: "javascript:document.title='taken'"}},
	})})
	p.until(`document.querySelector("#workers .state")?.textContent === "degraded"`)
	quoted, err := json.Marshal(markup)
	require.NoError(t, err)
	for _, id := range []string{"workers", "models"} {
		p.until(fmt.Sprintf("document.getElementById(%q).innerText.includes(%s)", id, quoted))
	}
	require.Equal(t, markup, value[string](p, `document.getElementById("model").value`))
	require.NotContains(t, p.text("models"), "__proto__")
	p.click("#unusable")
	require.Contains(t, p.text("models"), "__proto__")
	p.set("prompt", markup)
	p.click("#go")
	p.until(`document.getElementById("said").className === "bad"`)
	require.Zero(t, value[int](p, `document.querySelectorAll("img, main script, iframe, [onerror]").length`))
	require.Equal(t, "Millrace", value[string](p, `document.title`))
	p.forgive("Failed to load resource") // the worker generates nothing
}

// faint lists the enabled texts of the page whose contrast to their background, as WCAG defines it,
// is below 4.5.
const faint = `(() => {
  const parse = (c) => { const [r, g, b, a = 1] = c.match(/[\d.]+/g).map(Number); return {r, g, b, a}; };
  const light = ({r, g, b}) => { const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * x + 0.7152 * y + 0.0722 * z; };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const e = node.parentElement;
    if (!node.textContent.trim() || !e.checkVisibility() || e.closest("[aria-disabled=true]")) continue;
    let back = e;
    while (back && parse(getComputedStyle(back).backgroundColor).a < 1) back = back.parentElement;
    const [x, y] = [light(parse(getComputedStyle(e).color)), light(parse(getComputedStyle(back ?? document.documentElement).backgroundColor))];
    const contrast = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    if (contrast < 4.5) found.push(node.textContent.trim() + ": " + contrast.toFixed(2));
  }
  return found;
})()`

func TestTheConsoleIsLegibleDarkAndLight(t *testing.T) {
	t.Parallel()
	workers := []*server{
		startWorker(t, "w1", "--device", "cpu", "--load", stories), startWorker(t, "w2", paced...),
		{address: freeAddress(t)},
	}
	s, p := consoled(t, workers)
	calls := beginAll(t, s, 5, endless)
	p.until(`document.getElementById("ready").textContent === "2 of 3"`)
	p.until(`document.querySelectorAll("#generations tr").length === 5`)
	p.set("model", stories)
	p.click("#go")
	p.answered("said", "answer")
	p.click("#repeat")
	p.answered("compared", "again")
	p.until(`document.querySelector("#rates polyline")?.getAttribute("points")?.split(" ").length > 2`)
	backs := map[string]string{}
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 400} {
			p.setLayout(theme, width)
			require.Empty(t, value[[]string](p, faint), "%s, %d pixels wide", theme, width)
			require.LessOrEqual(t, value[int64](p, `document.documentElement.scrollWidth`), width, "nothing is wider than the page")
			p.shoot(fmt.Sprint(theme, "-", width))
		}
		backs[theme] = value[string](p, `getComputedStyle(document.documentElement).backgroundColor`)
	}
	require.NotEqual(t, backs["light"], backs["dark"])
	for _, c := range calls {
		c.leave()
	}
}

func TestTheConsoleWantsATokenWhereThereAreKeys(t *testing.T) {
	t.Parallel()
	keys := newKeyFile(t)
	keys.add("operator", nil, auth.Health, auth.Load, auth.Generate)
	keys.add("reader", nil, auth.Generate)
	keys.write(t)
	w := startWorker(t, "w1", paced...)
	address := freeAddress(t)
	serveTo(t, keys.as(t, "operator"), schedulerBinary, append([]string{
		"--workers", w.address, "--auth-keys", keys.path, "--console-listen", address}, patient...)...)
	p := openBrowser(t).open(t, address)
	p.until(`!document.getElementById("key").hidden`)
	require.Empty(t, p.text("workers"), "a stranger sees nothing")
	require.Empty(t, p.text("refused"))
	enter := func(token string) {
		p.set("token", token)
		p.press(kb.Enter)
	}
	enter(auth.NewToken())
	p.until(`document.getElementById("refused").textContent`)
	enter(keys.tokens["reader"])
	p.until(`document.getElementById("refused").textContent.includes("health")`)
	enter(keys.tokens["operator"])
	p.until(`document.getElementById("key").hidden && document.getElementById("ready").textContent === "1 of 1"`)
	p.forgive("401")
	p.forgive("403")
	require.Equal(t, "{}{}", value[string](p, `JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie`))
}

func TestAPageOfAnotherOriginChangesNothing(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	_, p := consoled(t, []*server{w})
	p.until(`document.getElementById("model").value === "long"`)
	// A simple request is sent without a preflight; another content type would need one.
	evil := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(out, `<title>begun</title><script>
fetch("http://%s/api/UnloadModel", {method: "POST", mode: "no-cors", body: '{"model":"long"}'}).finally(() => document.title = "done")
</script>`, p.host)
	}))
	t.Cleanup(evil.Close)
	ctx, leave := chromedp.NewContext(p.ctx)
	defer leave()
	stranger := &tab{T: t, ctx: ctx}
	require.NoError(t, chromedp.Do(ctx))
	stranger.do(chromedp.Navigate(evil.URL))
	stranger.until(`document.title === "done"`)
	stranger.do(chromedp.Navigate("about:blank"))
	// A call of the page itself follows.
	p.set("tokens", "3")
	p.click("#go")
	p.answered("said", "answer")
	require.Contains(t, p.text("said"), "3 tokens, ended by length")
}

func TestTheConsoleSaysThatItsSchedulerIsGone(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s, p := consoled(t, []*server{w})
	p.until(`document.getElementById("link").textContent === "live"`)
	s.kill()
	p.until(`document.getElementById("link").className === "down"`)
	s.again(t)
	p.until(`document.getElementById("link").textContent === "live"`)
	p.forgive("Failed to load resource")
	p.close()
}

// browsing returns the HTTP client of a browser with the certificate of a name; "": without one.
func (g *guarded) browsing(t *testing.T, who string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(g.ca.File)
	require.NoError(t, err)
	cfg := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
	require.True(t, cfg.RootCAs.AppendCertsFromPEM(text))
	if who != "" {
		own, err := tls.LoadX509KeyPair(g.files[who].Cert, g.files[who].Key)
		require.NoError(t, err)
		cfg.Certificates = []tls.Certificate{own}
	}
	return cfg
}

func TestTheConsoleAsksLessOftenAboutALargeFleet(t *testing.T) {
	t.Parallel()
	const many = 900
	workers := make([]*server, many) // no server listens at these addresses
	for i := range workers {
		workers[i] = &server{address: fmt.Sprintf("127.1.%d.%d:1", i/200, 1+i%200)}
	}
	s, p := consoled(t, workers, "--log-level", "debug")
	p.until(fmt.Sprintf(`document.getElementById("ready").textContent === "0 of %d"`, many))
	p.until(fmt.Sprintf(`document.querySelectorAll("#workers tr.gone").length === %d`, many))
	require.Eventually(t, func() bool {
		return strings.Contains(s.log.String(), "grpc.method=WatchFleet peer.address=in-process")
	}, hang, 10*time.Millisecond, "it ends the call that asks too often")
	p.until(`document.getElementById("link").textContent === "live"`)
}

func TestTheConsoleWantsTheCertificateThatGRPCDoes(t *testing.T) {
	t.Parallel()
	g := guard(t, 1)
	address := freeAddress(t)
	socket := filepath.Join(t.TempDir(), "s")
	launch(t, schedulerBinary, append(g.serving("scheduler"), "--listen", "unix:"+socket, "--console-listen", address, "--tls-client-san", "dns:client",
		"--workers", g.workers[0].address, "--tls-ca", g.ca.File, "--tls-server-san", "uri:spiffe://example.org/worker")...)
	require.Eventually(t, func() bool {
		c, err := net.DialTimeout("tcp", address, time.Second)
		return err == nil && c.Close() == nil
	}, hang, 10*time.Millisecond)
	ask := func(who string) (int, string, error) {
		in, err := http.NewRequestWithContext(within(t), http.MethodPost, "https://"+address+"/api/WatchFleet", strings.NewReader("{}"))
		require.NoError(t, err)
		in.Header.Set("Content-Type", "application/json")
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: g.browsing(t, who), DisableKeepAlives: true}}
		out, err := client.Do(in)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = out.Body.Close() }()
		text := make([]byte, 64)
		n, err := out.Body.Read(text)
		if errors.Is(err, io.EOF) { // which may come with the last bytes
			err = nil
		}
		return out.StatusCode, string(text[:n]), err
	}
	// A client that sends more after the server has closed the connection may see only that, and
	// tries again.
	for guard := time.Now().Add(hang); ; {
		_, _, err := ask("")
		require.Error(t, err)
		if strings.Contains(err.Error(), "certificate required") {
			break
		}
		require.True(t, time.Now().Before(guard), "%v", err)
	}
	code, says, err := ask("operator")
	require.NoError(t, err)
	require.Equal(t, http.StatusForbidden, code, says)
	require.Eventually(t, func() bool {
		code, says, err = ask("client")
		return err == nil && code == http.StatusOK && strings.HasPrefix(says, `{"result":`)
	}, hang, 10*time.Millisecond, "%v", says)
}
