package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// browser is a headless Chromium.
type browser struct{ ctx context.Context }

// openBrowser starts a browser, or skips the test if there is none.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no Chromium: apt install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WSURLReadTimeout(hang), chromedp.NoSandbox) // as root it does not start otherwise
	ctx, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, leave := chromedp.NewContext(ctx)
	t.Cleanup(leave)
	require.NoError(t, chromedp.Do(ctx))
	return &browser{ctx}
}

// tab is a tab of the browser and the failures in it.
type tab struct {
	*testing.T
	ctx  context.Context
	host string // the only host that it may contact
	// close closes the tab. The server must still run, because a lost connection is a failure too.
	close func()

	mu       sync.Mutex
	failures []string // guarded by mu
}

// open opens a console in a new tab. Every error of its script, style or content policy fails the
// test, and so does a request to another host.
func (b *browser) open(t *testing.T, address string) *tab {
	t.Helper()
	p := &tab{T: t, host: address}
	ctx, leave := chromedp.NewContext(b.ctx, chromedp.WithListener(p.record))
	p.ctx = ctx
	p.close = sync.OnceFunc(func() {
		if t.Failed() {
			if text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`)); err == nil {
				t.Logf("the page says:\n%s", text)
			}
		}
		leave()
		p.mu.Lock()
		defer p.mu.Unlock()
		require.Empty(t, p.failures, "the browser complains")
	})
	t.Cleanup(p.close)
	require.NoError(t, chromedp.Do(ctx)) // the tab closes with the context of its first action
	p.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate("http://"+address+"/"))
	return p
}

// record stores failures.
func (p *tab) record(event any) {
	note := func(format string, args ...any) {
		p.mu.Lock()
		p.failures = append(p.failures, fmt.Sprintf(format, args...))
		p.mu.Unlock()
	}
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		note("exception: %v", e.ExceptionDetails)
	case *runtime.EventConsoleAPICalled:
		for _, arg := range e.Args {
			note("console.%s: %s %s", e.Type, arg.Value, arg.Description)
		}
	case *cdplog.EventEntryAdded:
		note("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, "http://"+p.host+"/") {
			note("it asks for %s", e.Request.URL)
		}
	}
}

// forgive removes the failures that contain a text, and fails if there is none.
func (p *tab) forgive(text string) {
	p.Helper()
	require.Eventually(p, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return slices.ContainsFunc(p.failures, func(f string) bool { return strings.Contains(f, text) })
	}, hang, 10*time.Millisecond, "the browser says nothing of %s", text)
	p.mu.Lock()
	defer p.mu.Unlock()
	var rest []string
	for _, f := range p.failures {
		if !strings.Contains(f, text) {
			rest = append(rest, f)
		}
	}
	p.failures = rest
}

// do runs actions and fails if they take long.
func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, hang)
	defer cancel()
	require.NoError(p, chromedp.Do(ctx, actions...))
}

// press presses keys.
func (p *tab) press(keys string, options ...chromedp.KeyOption) {
	p.Helper()
	p.do(chromedp.KeyEvent(keys, options...))
}

// value evaluates an expression.
func value[T any](p *tab, expression string) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, hang)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	require.NoError(p, err, expression)
	return v
}

// until waits until an expression is true, and returns how long that took.
func (p *tab) until(expression string) time.Duration {
	p.Helper()
	begin := time.Now()
	for time.Since(begin) < hang {
		if value[bool](p, "Boolean("+expression+")") {
			return time.Since(begin)
		}
		time.Sleep(10 * time.Millisecond)
	}
	require.FailNow(p, "the page is never so", expression)
	return 0
}

// text returns the text of an element.
func (p *tab) text(id string) string {
	p.Helper()
	return value[string](p, fmt.Sprintf("document.getElementById(%q).textContent", id))
}

// click clicks the element of a selector, wherever it is: elements above it grow and shrink.
func (p *tab) click(selector string) {
	p.Helper()
	p.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelector(%q).click()", selector)))
}

// set types a value into a field.
func (p *tab) set(id, text string) {
	p.Helper()
	p.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.getElementById(%q).value = ''", id)), chromedp.SendKeys(chromedp.ID(id), text))
}

// reach presses Tab until the focus is on an element for which an expression of `at` is true.
func (p *tab) reach(to string) {
	p.Helper()
	for range 100 {
		p.press(kb.Tab)
		if value[bool](p, "(at => Boolean("+to+"))(document.activeElement)") {
			return
		}
	}
	require.FailNow(p, "no press of Tab leads there", to)
}

// setLayout sets the colour scheme and the width of the page.
func (p *tab) setLayout(theme string, width int64) {
	p.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
	})
	require.NoError(p, err)
	p.do(chromedp.EmulateViewport(width, 900))
}

// shoot saves a picture of the whole page; go test -artifacts keeps it.
func (p *tab) shoot(name string) {
	p.Helper()
	png, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	require.NoError(p, err)
	require.NoError(p, os.WriteFile(filepath.Join(p.ArtifactDir(), name+".png"), png, 0o600))
}
