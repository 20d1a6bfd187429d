package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// StepSeconds is a worker's metric: the device time of all steps that have ended, in seconds.
const StepSeconds = "millrace_step_seconds_sum"

// scrapeInterval is the time between two scrapes of WatchIdle.
const scrapeInterval = 200 * time.Millisecond

// scrapeTimeout bounds one scrape.
const scrapeTimeout = 5 * time.Second

// ErrMetric is returned if a page does not have the metric.
var ErrMetric = errors.New("no such metric")

// Idle is how long a device had no step.
type Idle struct {
	Seconds float64 `json:"seconds"`      // observed
	Share   float64 `json:"idle_share"`   // of these, without a step
	Steps   float64 `json:"step_seconds"` // of these, with a step, by the device's own clock
}

// WatchIdle scrapes a worker's metrics until done is closed or ctx ends, and returns the idle time
// between the first and the last scrape, each of which is wrong by at most one step. The worker
// must have work all the time.
func WatchIdle(ctx context.Context, url string, done <-chan struct{}) (Idle, error) {
	ticker := time.NewTicker(scrapeInterval)
	defer ticker.Stop()
	scrape := func() (time.Time, float64, error) {
		before := time.Now()
		sum, err := ScrapeSum(ctx, url, StepSeconds)
		return before.Add(time.Since(before) / 2), sum, err
	}
	firstTime, firstSum, err := scrape()
	if err != nil {
		return Idle{}, err
	}
	lastTime, lastSum := firstTime, firstSum
	for {
		select {
		case <-done:
			return idleOf(lastTime.Sub(firstTime), lastSum-firstSum), nil
		case <-ctx.Done():
			return idleOf(lastTime.Sub(firstTime), lastSum-firstSum), nil
		case <-ticker.C:
		}
		when, sum, err := scrape()
		if ctx.Err() != nil {
			continue
		}
		if err != nil {
			return Idle{}, err
		}
		select {
		case <-done: // this scrape may include idle time after the end of the work
		default:
			lastTime, lastSum = when, sum
		}
	}
}

func idleOf(span time.Duration, steps float64) Idle {
	out := Idle{Seconds: span.Seconds(), Steps: steps}
	if out.Seconds > 0 {
		out.Share = max(1-steps/out.Seconds, 0)
	}
	return out
}

// ScrapeSum reads a page in Prometheus' text format and adds up the series of a metric over all
// labels.
func ScrapeSum(ctx context.Context, url, metric string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	request.Close = true // an idle connection would keep a goroutine of the client
	response, err := (&http.Client{Timeout: scrapeTimeout}).Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // only read
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s answers %s", url, response.Status)
	}
	sum, err := sumOf(response.Body, metric)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", url, err)
	}
	return sum, nil
}

// sumOf adds up the series of a metric: lines NAME VALUE or NAME{LABELS} VALUE, perhaps with a
// time.
func sumOf(page io.Reader, metric string) (sum float64, err error) {
	found := false
	lines := bufio.NewScanner(page)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), metric)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		if rest[0] == '{' {
			rest = rest[strings.LastIndexByte(rest, '}')+1:]
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return 0, fmt.Errorf("%q has no value", lines.Text())
		}
		value, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return 0, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		sum, found = sum+value, true
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if !found {
		return 0, fmt.Errorf("%w: %s", ErrMetric, metric)
	}
	return sum, nil
}
