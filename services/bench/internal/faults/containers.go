package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/proc"
)

// ContainerConfig configures RunContainers.
type ContainerConfig struct {
	Project    string        // of Compose
	Schedulers []string      // published addresses of scheduler-0, scheduler-1 and so on; at least two
	Model      string        // loaded on every worker
	Service    string        // of Compose, whose containers are the workers
	Workers    int           // containers of that service
	Streams    int           // at once
	Tokens     int           // of each
	Only       []string      // sections; empty: all
	Truth      time.Duration // within which schedulers must show a new state of a worker
}

// Validate returns everything that is wrong.
func (c *ContainerConfig) Validate() error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if len(c.Schedulers) < 2 {
		refuse("--schedulers has %d: want two, of which one survives the other", len(c.Schedulers))
	}
	if c.Service == "" {
		refuse("--service is empty: want the one whose containers are the workers")
	}
	if c.Workers < 2 {
		refuse("--workers %d: want at least 2, of which one survives the other", c.Workers)
	}
	if c.Streams < max(1, len(c.Schedulers)) || c.Streams > 1000 {
		refuse("--streams %d: want %d to 1000, so that every scheduler has one", c.Streams, len(c.Schedulers))
	}
	if c.Tokens < 2 {
		refuse("--max-tokens %d: want at least 2, so that a stream has a middle", c.Tokens)
	}
	if c.Truth <= 0 {
		refuse("--truth %v: want a positive time", c.Truth)
	}
	for _, name := range c.Only {
		if !slices.Contains(Sections(), name) {
			refuse("no section %q: want %s", name, strings.Join(Sections(), ", "))
		}
	}
	return errors.Join(wrong...)
}

// containers is the driver for the containers of a Compose project, and the state of a run.
type containers struct {
	fleet
	cfg      ContainerConfig
	docker   docker
	ids      map[string]string                      // containers by member, as of refresh
	heal     map[string]func(context.Context) error // by member; of partitions
	workload workload
	truth    []*Transcript
}

// RunContainers runs the sections. It passes the report's Head and each Result to progress as soon
// as it exists. A section that fails does not end the run, unless it is the first, which takes the
// truth.
func RunContainers(ctx context.Context, cfg ContainerConfig, progress func(fmt.Stringer)) (*ContainerReport, error) {
	r := &containers{cfg: cfg, docker: docker{cfg.Project, cfg.Service}, heal: map[string]func(context.Context) error{}}
	r.fleet = fleet{driver: r, model: cfg.Model}
	r.workload = workload{
		streams: cfg.Streams, requests: cfg.Streams, grace: streamTimeout,
		request: func(i int) *pb.GenerateRequest { return story(cfg.Model, cfg.Tokens, i) },
	}
	for n := range cfg.Workers {
		r.workers = append(r.workers, fmt.Sprintf("%s-%d", cfg.Service, n+1))
	}
	defer func() {
		for _, s := range r.schedulers {
			_ = s.conn.Close() // its calls have ended
		}
	}()
	for i, address := range cfg.Schedulers {
		s, err := dial(fmt.Sprintf("scheduler-%d", i), address, cfg.Model)
		if err != nil {
			return nil, err
		}
		r.schedulers = append(r.schedulers, s)
	}
	defer r.watch(ctx)()

	report := &ContainerReport{Head: cfg.head()}
	progress(report.Head)
	for i, s := range slices.Concat([]section{{"start", (*containers).start}}, sections) {
		if i > 0 && len(cfg.Only) > 0 && !slices.Contains(cfg.Only, s.name) {
			continue
		}
		began := time.Now()
		text, err := s.try(ctx, r)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		result := Result{Section: s.name, OK: err == nil, Seconds: time.Since(began).Seconds(), Text: text}
		if err != nil {
			result.Text = strings.TrimSuffix(strings.ReplaceAll(err.Error(), "\n", "; ")+" ("+text+")", " ()")
		}
		progress(result)
		report.Sections = append(report.Sections, result)
		if i == 0 && err != nil {
			break
		}
	}
	return report, nil
}

// refresh reads the ids of the containers. Sections call it before they choose a victim, because
// streams come to their ends while docker runs.
func (r *containers) refresh(ctx context.Context) (err error) {
	r.ids, err = r.docker.containers(ctx)
	return err
}

func (r *containers) inject(ctx context.Context, kind Kind, member string) (since time.Time, err error) {
	id := r.ids[member]
	switch kind {
	case Kill:
		if _, err := r.docker.run(ctx, "kill", "--signal", "KILL", id); err != nil {
			return time.Time{}, err
		}
		return r.docker.ended(ctx, id)
	case Freeze:
		_, err = r.docker.run(ctx, "pause", id)
	case Partition:
		r.heal[member], err = r.docker.partition(ctx, id)
	case drain:
		if _, err = r.schedulers[0].fleet.DrainWorker(ctx, &pb.DrainWorkerRequest{WorkerId: member}); err != nil {
			err = fmt.Errorf("DrainWorker %s: %s", member, failure(err))
		}
	}
	return time.Now(), err
}

// restore also waits until a member that was killed serves, by its own account.
func (r *containers) restore(ctx context.Context, kind Kind, member string) error {
	switch kind {
	case Kill:
		return r.again(ctx, member, "start")
	case Freeze:
		_, err := r.docker.run(ctx, "unpause", r.ids[member])
		return err
	case Partition:
		return r.heal[member](ctx)
	case drain:
		if _, err := r.schedulers[0].fleet.UndrainWorker(ctx, &pb.UndrainWorkerRequest{WorkerId: member}); err != nil {
			return fmt.Errorf("UndrainWorker %s: %s", member, failure(err))
		}
	}
	return nil
}

// check returns nil: a container that ends on its own makes streams fail.
func (r *containers) check() error { return nil }

// again starts or restarts a member and waits until it says that it serves.
func (r *containers) again(ctx context.Context, member string, verb ...string) error {
	if _, err := r.docker.on(ctx, member, verb...); err != nil {
		return err
	}
	port := "7071"
	if strings.HasPrefix(member, "scheduler-") {
		port = "7070"
	}
	ctx, cancel := context.WithTimeout(ctx, wholeTimeout)
	defer cancel()
	_, err := r.docker.inside(ctx, member, "sh", "-c", "until millrace health --target 127.0.0.1:"+port+" >/dev/null 2>&1; do sleep 0.1; done")
	if err != nil {
		return fmt.Errorf("%s does not serve: %w", member, err)
	}
	return nil
}

// Result is the result of one section.
type Result struct {
	Section string  `json:"section"`
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"`
	Text    string  `json:"text"`
}

// String returns one line.
func (r Result) String() string {
	verdict := "ok  "
	if !r.OK {
		verdict = "FAIL"
	}
	return fmt.Sprintf("%s  %-10s %4.0f s  %s", verdict, r.Section, r.Seconds, r.Text)
}

// Head describes a run.
type Head struct {
	Machine    proc.Machine `json:"machine"`
	Schedulers int          `json:"schedulers"`
	Service    string       `json:"service"`
	Workers    int          `json:"workers"`
	Model      string       `json:"model"`
	Streams    int          `json:"streams"`
	Tokens     int          `json:"max_tokens"`
}

func (c *ContainerConfig) head() Head {
	return Head{
		Machine: proc.ThisMachine(), Schedulers: len(c.Schedulers), Service: c.Service, Workers: c.Workers,
		Model: c.Model, Streams: c.Streams, Tokens: c.Tokens,
	}
}

// String returns three lines.
func (h Head) String() string {
	return fmt.Sprintf("machine  %v\nfleet    %d schedulers, %d containers of the service %s\nload     %d streams at once, each of %d tokens of %s",
		h.Machine, h.Schedulers, h.Workers, h.Service, h.Streams, h.Tokens, h.Model)
}

// ContainerReport is the result of RunContainers.
type ContainerReport struct {
	Head
	Sections []Result `json:"sections"`
}

// Print writes how many sections hold; RunContainers reports each of them as it ends.
func (r *ContainerReport) Print(w io.Writer) {
	fmt.Fprintf(w, "%d of %d sections hold\n", len(r.Sections)-len(r.failed()), len(r.Sections))
}

// Err returns ErrBroken with the names of the sections that failed, or nil.
func (r *ContainerReport) Err() error {
	if failed := r.failed(); len(failed) > 0 {
		return fmt.Errorf("%w: %s", ErrBroken, strings.Join(failed, ", "))
	}
	return nil
}

func (r *ContainerReport) failed() (names []string) {
	for _, s := range r.Sections {
		if !s.OK {
			names = append(names, s.Section)
		}
	}
	return names
}
