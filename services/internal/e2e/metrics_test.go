package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
)

// page returns the page that a process serves at an address.
func page(t *testing.T, address, path string) (int, string) {
	t.Helper()
	in, err := http.NewRequestWithContext(within(t), http.MethodGet, "http://"+address+path, http.NoBody)
	require.NoError(t, err)
	out, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(in)
	require.NoError(t, err)
	body, err := io.ReadAll(out.Body)
	require.NoError(t, err)
	require.NoError(t, out.Body.Close())
	return out.StatusCode, string(body)
}

// untilPage requests a page until it is as wanted.
func untilPage(t *testing.T, address, path, what string, holds func(code int, body string) bool) {
	t.Helper()
	for deadline := time.Now().Add(hang); ; time.Sleep(10 * time.Millisecond) {
		code, body := page(t, address, path)
		if holds(code, body) {
			return
		}
		require.True(t, time.Now().Before(deadline), "until %s: %d\n%s", what, code, body)
	}
}

// measured returns the metrics that a process serves, as Prometheus parses them.
func measured(t *testing.T, address string) map[string]*dto.MetricFamily {
	t.Helper()
	code, body := page(t, address, "/metrics")
	require.Equal(t, http.StatusOK, code)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	require.NoError(t, err)
	return families
}

// sums returns the same metrics, summed over their labels.
func sums(t *testing.T, address string) map[string]float64 {
	t.Helper()
	code, body := page(t, address, "/metrics")
	require.Equal(t, http.StatusOK, code)
	return monitortest.Sums(t, body)
}

// watched is a scheduler and one simulated worker, with the addresses of their metrics.
func watched(t *testing.T, args ...string) (s *server, ofScheduler, ofWorker string) {
	t.Helper()
	ofScheduler, ofWorker = freeAddress(t), freeAddress(t)
	w := startWorker(t, "w1", append([]string{"--load", stories, "--metrics-listen", ofWorker, "--metrics-aliases", "vllm"}, args...)...)
	s = startScheduler(t, []*server{w}, "--metrics-listen", ofScheduler)
	s.untilServed(t, stories, 1)
	return s, ofScheduler, ofWorker
}

// generateTokens runs a generation of n tokens to its end.
func generateTokens(ctx context.Context, on *server, name string, tokens int32) error {
	ignore := true
	stream, err := on.infer.Generate(ctx, &pb.GenerateRequest{
		Model: name, Input: &pb.GenerateRequest_Prompt{Prompt: "Once upon a time there was a girl"},
		Stopping: &pb.Stopping{MaxTokens: &tokens, IgnoreEos: &ignore},
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// requireSums waits until metrics have their sums: calls are counted after their ends.
func requireSums(t *testing.T, address string, want map[string]float64) {
	t.Helper()
	var differ map[string]float64
	for deadline := time.Now().Add(hang); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		now := sums(t, address)
		differ = map[string]float64{}
		for name, n := range want {
			if now[name] != n {
				differ[name] = now[name]
			}
		}
		if len(differ) == 0 {
			return
		}
	}
	require.Empty(t, differ, "these differ from %v", want)
}

func TestMeasuresUnderLoadAddUp(t *testing.T) {
	t.Parallel()
	s, ofScheduler, ofWorker := watched(t, "--device", "sim:step=1ms,decode=0s,prefill=0s")
	const streams, tokens = 24, 60
	var load sync.WaitGroup
	for range streams {
		load.Go(func() {
			if err := generateTokens(within(t), s, stories, tokens); err != nil {
				t.Error(err)
			}
		})
	}
	done := make(chan struct{})
	go func() { load.Wait(); close(done) }()
	last, scrapes := 0.0, 0
	for running := true; running; scrapes++ {
		select {
		case <-done:
			running = false
		default:
		}
		now := sums(t, ofScheduler)["millrace_scheduler_tokens_total"]
		require.GreaterOrEqual(t, now, last, "a counter only grows")
		last = now
		require.LessOrEqual(t, sums(t, ofWorker)["millrace_running_sequences"], float64(streams))
	}
	require.Equal(t, codes.NotFound, status.Code(generateTokens(within(t), s, "nobody's \"model\"\n", 1)))
	requireSums(t, ofScheduler, map[string]float64{
		"millrace_scheduler_requests_total": streams,
		"millrace_scheduler_tokens_total":   streams * tokens, "millrace_scheduler_first_token_seconds": streams,
		"millrace_scheduler_request_seconds": streams, "millrace_scheduler_running_requests": 0,
		"millrace_scheduler_worker_up": 1, "millrace_scheduler_ready": 1,
	})
	requireSums(t, ofWorker, map[string]float64{
		"millrace_requests_total":         streams,
		"millrace_generated_tokens_total": streams * tokens, "vllm:generation_tokens_total": streams * tokens,
		"millrace_first_token_seconds": streams, "millrace_inter_token_seconds": streams * (tokens - 1),
		"millrace_finished_sequences_total": streams, "millrace_steps_after_cancel_total": 0, "millrace_health_followers": 1,
	})
	untilPage(t, ofScheduler, "/metrics", "the refusal is counted", func(_ int, body string) bool {
		return monitortest.Series(t, body)["millrace_refused_calls_total origin=own reason=UNKNOWN_MODEL"] == 1
	})
	for _, address := range []string{ofScheduler, ofWorker} {
		_, body := page(t, address, "/metrics")
		require.NotContains(t, body, "nobody's", "names from callers are not labels")
		for _, path := range []string{"/healthz", "/readyz"} {
			code, says := page(t, address, path)
			require.Equal(t, http.StatusOK, code, says)
		}
	}
	t.Logf("%d scrapes of both", scrapes)
}

func TestSchedulerWithoutWorkersIsNotReady(t *testing.T) {
	// It is alive, and not ready until it knows its fleet.
	t.Parallel()
	// This worker accepts connections and does not answer, so the scheduler must wait for the
	// grace.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, silent.Close()) }()
	address := freeAddress(t)
	launch(t, schedulerBinary, "--listen", freeAddress(t), "--workers", silent.Addr().String(), "--metrics-listen", address)
	require.Eventually(t, func() bool {
		c, err := net.DialTimeout("tcp", address, time.Second)
		return err == nil && c.Close() == nil
	}, hang, time.Millisecond)
	code, _ := page(t, address, "/healthz")
	require.Equal(t, http.StatusOK, code)
	untilPage(t, address, "/readyz", "the grace ends", func(code int, _ string) bool { return code == http.StatusOK })
}

// onDevices are metrics that a simulated device does not have.
var onDevices = []string{"millrace_device_temperature_celsius", "millrace_device_power_watts", "millrace_device_memory_errors_total"}

// ofPrometheus are metrics of Prometheus itself.
var ofPrometheus = []string{"up"}

// questions returns the expressions of the dashboard and of the alerts, by their place.
func questions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	raw, err := os.ReadFile(filepath.Join(root, "deploy", "monitoring", "grafana", "dashboards", "millrace.json"))
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ RefID, Expr, LegendFormat string }
		}
	}
	require.NoError(t, json.Unmarshal(raw, &dashboard))
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		require.False(t, ids[p.ID], "two panels have the id %d", p.ID)
		ids[p.ID] = true
		for _, target := range p.Targets {
			all["panel "+p.Title+" "+target.RefID] = target.Expr
		}
	}
	raw, err = os.ReadFile(filepath.Join(root, "deploy", "monitoring", "alerts.yml"))
	require.NoError(t, err)
	var alerts struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	require.NoError(t, yaml.Unmarshal(raw, &alerts))
	for _, g := range alerts.Groups {
		for _, rule := range g.Rules {
			require.NotEmpty(t, rule.Expr, rule.Alert)
			all["alert "+rule.Alert] = rule.Expr
		}
	}
	require.Greater(t, len(all), 50)
	return all
}

var (
	quoted   = regexp.MustCompile(`"(\\.|[^"\\])*"`)
	selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}`)
	labels   = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)`)
	group    = regexp.MustCompile(`\b(by|on|without|ignoring) \([^)]*\)`)
	span     = regexp.MustCompile(`\[[^\]]*\]`)
	name     = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*(\s*\()?`)
)

// asks returns the metrics of an expression, each with the labels that it selects by. Every name
// that is neither a function nor an operator counts as a metric.
func asks(expr string) map[string][]string {
	expr = quoted.ReplaceAllString(expr, `""`)
	found := map[string][]string{}
	for _, s := range selector.FindAllStringSubmatch(expr, -1) {
		for _, l := range labels.FindAllStringSubmatch(s[2], -1) {
			found[s[1]] = append(found[s[1]], l[1])
		}
	}
	expr = selector.ReplaceAllString(expr, "$1 ")
	expr = span.ReplaceAllString(group.ReplaceAllString(expr, ""), "")
	for _, word := range name.FindAllString(expr, -1) {
		if strings.HasSuffix(word, "(") || slices.Contains([]string{"sum", "max", "min", "and", "or", "unless"}, word) {
			continue
		}
		found[word] = append(found[word], nil...)
	}
	return found
}

func TestExpressionNamesItsMetrics(t *testing.T) {
	t.Parallel()
	require.Equal(t, map[string][]string{"a_bucket": {"x", "y"}, "b:c": nil, "d": nil}, asks(
		`histogram_quantile(0.99, sum by (le, f) (rate(a_bucket{x=~"$g{h}",y!="i"}[$__rate_interval]))) > b:c * 0 or max by (j) (d[5m])`))
}

func TestDashboardMetricsAreServed(t *testing.T) {
	// Every metric and label of the dashboard and the alerts is served.
	t.Parallel()
	s, ofScheduler, ofWorker := watched(t, quick...)
	require.NoError(t, generateTokens(within(t), s, stories, 8))
	require.Error(t, generateTokens(within(t), s, "nobody", 8), "a refusal is counted, so its metric exists")
	documented := monitortest.Documented(t, "Metrics of a worker", "Metrics of a scheduler", "Metrics of both")
	var served map[string]*dto.MetricFamily
	var missing []string
	for deadline := time.Now().Add(hang); ; time.Sleep(10 * time.Millisecond) { // calls are counted after their ends
		served, missing = measured(t, ofScheduler), nil
		for name, family := range measured(t, ofWorker) {
			if served[name] == nil || len(served[name].GetMetric()) < len(family.GetMetric()) {
				served[name] = family
			}
		}
		for _, name := range documented {
			if served[name] == nil && !slices.Contains(onDevices, name) && !strings.HasPrefix(name, "millrace_device_physical") {
				missing = append(missing, name)
			}
		}
		if len(missing) == 0 || time.Now().After(deadline) {
			break
		}
	}
	require.Empty(t, missing, "docs/observability.md lists them, and no process serves them")
	for _, name := range onDevices {
		require.Nil(t, served[name])
		require.Contains(t, documented, name)
	}
	for where, expr := range questions(t) {
		metrics := asks(expr)
		require.NotEmpty(t, metrics, where)
		for name, selected := range metrics {
			if slices.Contains(onDevices, name) || slices.Contains(ofPrometheus, name) {
				continue
			}
			family := served[name]
			if base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, ""); family == nil && base != name {
				family = served[base]
				require.Equal(t, dto.MetricType_HISTOGRAM, family.GetType(), "%s: %s", where, name)
			}
			require.NotNil(t, family, "%s uses %s, which no process serves", where, name)
			for _, label := range selected {
				if label == "instance" || label == "job" { // Prometheus adds these
					continue
				}
				require.True(t, slices.ContainsFunc(family.GetMetric()[0].GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == label }),
					"%s selects %s by %s, which it does not have", where, name, label)
			}
		}
	}
}

// job is a scrape job of Prometheus.
type job struct {
	Name string `yaml:"job_name"`
	DNS  []struct {
		Names []string
		Port  int
	} `yaml:"dns_sd_configs"`
}

func TestTheScrapedPortsAreThoseOfTheContainers(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(root, "deploy", "monitoring", "prometheus.yml"))
	require.NoError(t, err)
	var config struct {
		Jobs []job `yaml:"scrape_configs"`
	}
	require.NoError(t, yaml.Unmarshal(raw, &config))
	raw, err = os.ReadFile(filepath.Join(root, "docker-compose.yml"))
	require.NoError(t, err)
	listens := map[string]string{"schedulers": `--metrics-listen, "0.0.0.0:%d"`, "gateways": `--metrics-listen, "0.0.0.0:%d"`, "workers": "--metrics-listen 0.0.0.0:%d "}
	require.Len(t, config.Jobs, len(listens))
	for _, j := range config.Jobs {
		require.Regexp(t, "^millrace-", j.Name, "the alerts go by it")
		require.Len(t, j.DNS, 1)
		require.Len(t, j.DNS[0].Names, 1)
		of := j.DNS[0].Names[0]
		require.Contains(t, string(raw), "aliases: ["+of+"]")
		require.Contains(t, string(raw), fmt.Sprintf(listens[of], j.DNS[0].Port))
	}
}
