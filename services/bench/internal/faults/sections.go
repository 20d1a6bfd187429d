package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

const (
	// A killed container stays down for downTime; a frozen or partitioned one is silent for
	// silentTime.
	downTime   = time.Second
	silentTime = 5 * time.Second
	// beginning divides the length of a stream: in the first part it has just begun. It is a share
	// and not a time because on a slow machine docker takes longer too.
	beginning = 8
	// streamTimeout is how long a stream may take; busyTimeout bounds the wait for streams to
	// begin.
	streamTimeout = 5 * time.Minute
	busyTimeout   = 2 * time.Minute
	// emptyTimeout bounds the wait for a draining worker to have no stream. Then it must get none
	// for quietTime.
	emptyTimeout = 2 * time.Minute
	quietTime    = 2 * time.Second
	// stopSeconds is longer than a server's drain timeout.
	stopSeconds = "45"
)

// section is one scenario; it returns a line about its result.
type section struct {
	name string
	run  func(*containers, context.Context) (string, error)
}

// sections in the order in which they run.
var sections = []section{
	{"kill", func(r *containers, ctx context.Context) (string, error) { return r.fault(ctx, Kill, downTime) }},
	{"freeze", func(r *containers, ctx context.Context) (string, error) { return r.fault(ctx, Freeze, silentTime) }},
	{"partition", func(r *containers, ctx context.Context) (string, error) { return r.fault(ctx, Partition, silentTime) }},
	{"drain", (*containers).drain}, {"scheduler", (*containers).scheduler}, {"restart", (*containers).restart},
	{"recreate", (*containers).recreate},
}

// Sections returns the names of the sections in the order in which they run.
func Sections() (names []string) {
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

// errIdle says that a fault met no stream, so that the section showed nothing.
var errIdle = errors.New("no stream was interrupted")

// try runs a section until a fault met a stream, three times at most: on a busy machine docker
// takes so long that streams come to their ends before the fault.
func (s section) try(ctx context.Context, r *containers) (text string, err error) {
	for range 3 {
		if text, err = s.run(r, ctx); !errors.Is(err, errIdle) {
			break
		}
	}
	return text, err
}

// start waits until every scheduler shows every worker at its container's address, and takes the
// truth: through every scheduler the same, and from all workers.
func (r *containers) start(ctx context.Context) (string, error) {
	if err := r.named(ctx); err != nil {
		return "", err
	}
	for _, s := range r.schedulers {
		stage, transcripts, err := r.fleet.truth(ctx, r.workload, []*scheduler{s})
		if err != nil {
			return "", fmt.Errorf("through %s: %w", s.name, err)
		}
		if r.truth == nil {
			r.truth = transcripts
		}
		used := map[string]bool{}
		for i, rec := range stage.records {
			used[rec.worker] = true
			if err := rec.transcript.Same(r.truth[i]); err != nil {
				return "", fmt.Errorf("request %d differs between undisturbed schedulers: %w", i, err)
			}
		}
		if len(used) < min(r.cfg.Workers, r.cfg.Streams) {
			return "", fmt.Errorf("%s gave %d streams at once to %d of %d workers", s.name, r.cfg.Streams, len(used), r.cfg.Workers)
		}
	}
	return fmt.Sprintf("%d schedulers show %s to %s and give %d streams the same tokens",
		len(r.schedulers), r.workers[0], r.workers[len(r.workers)-1], r.cfg.Streams), nil
}

// named waits until the fleet is whole and checks that every worker has the id of its container.
func (r *containers) named(ctx context.Context) error {
	if err := r.whole(ctx); err != nil {
		return err
	}
	for _, id := range r.workers {
		host, err := r.docker.on(ctx, id, "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
		if err != nil {
			return err
		}
		for _, s := range r.schedulers {
			if !s.until(ctx, r.cfg.Truth, func(workers []*pb.FleetWorker) bool { return at(workers, host) == id }) {
				return fmt.Errorf("%s does not show %s at %s, the address of its container", s.name, id, host)
			}
		}
	}
	return nil
}

// under runs streams while hurt runs, and returns its text with the stage's figures. It fails if a
// stream was lost or changed or paused too long, and with errIdle if faults were injected and met
// no stream.
func (r *containers) under(ctx context.Context, resumes bool, hurt func(*client, *Stage) (string, error)) (string, *Stage, error) {
	if err := r.whole(ctx); err != nil {
		return "", nil, fmt.Errorf("before any fault: %w", err)
	}
	if err := r.refresh(ctx); err != nil {
		return "", nil, err
	}
	var text string
	s, err := r.stage(ctx, "", r.workload, resumes, r.truth, func(c *client, s *Stage) (err error) {
		if err = r.spread(ctx, c); err == nil {
			text, err = hurt(c, s)
		}
		return err
	})
	if wrong := s.violations(); len(wrong) > 0 {
		return text, s, fmt.Errorf("of %d streams %s: %s", s.Streams, strings.Join(wrong, ", "), strings.Join(s.problems.all(), "; "))
	}
	if err != nil {
		return text, s, err
	}
	var longest time.Duration
	for _, rec := range s.records {
		longest = max(longest, rec.longest())
	}
	text += fmt.Sprintf("; %d streams, none failed, all equal, longest gap %s", s.Streams, seconds(longest))
	for _, g := range s.Gaps {
		if g.Pauses.Count > 0 {
			text += fmt.Sprintf(", %d interrupted for at most %.2f s", g.Pauses.Count, g.Pauses.Max/1e3)
		}
	}
	if len(s.Faults) > 0 && s.Resumes == 0 {
		err = errIdle
	}
	return text, s, err
}

// spread waits until half of the streams are open and all workers have had one.
func (r *containers) spread(ctx context.Context, c *client) error {
	streams, workers := 0, 0
	for deadline := time.Now().Add(busyTimeout); time.Now().Before(deadline); {
		if streams, workers = c.live.spread(); workers >= r.cfg.Workers && streams >= r.cfg.Streams/2 {
			return nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%d streams run, and %d workers had any: want %d on %d workers before a fault", streams, workers, r.cfg.Streams/2, r.cfg.Workers)
}

// hit injects a fault into the busiest worker when it has half of its share of streams that have
// just begun, so that they are not at their ends before the fault takes effect.
func (r *containers) hit(ctx context.Context, c *client, s *Stage, kind Kind) (*Fault, time.Time, error) {
	early, many := r.cfg.Tokens/beginning, max(1, r.cfg.Streams/r.cfg.Workers/2)
	for deadline := time.Now().Add(busyTimeout); ; {
		busy := c.live.busy(early)
		victim := slices.MaxFunc(r.workers, func(a, b string) int { return busy[a] - busy[b] })
		if busy[victim] >= many {
			since, err := r.driver.inject(ctx, kind, victim)
			s.Faults = append(s.Faults, Fault{Kind: kind, Node: victim, At: since.Sub(c.began), Busy: uint32(busy[victim])})
			return &s.Faults[len(s.Faults)-1], since, err
		}
		if time.Now().After(deadline) || !sleep(ctx, 5*time.Millisecond) {
			return nil, time.Time{}, fmt.Errorf("within %v no worker had %d streams with %d tokens at most: %w", busyTimeout, many, early, errIdle)
		}
	}
}

// within is the time in which schedulers must show a state; withinSilence that for a worker that is
// silent and whose steps may be long.
func (r *containers) within(time.Duration) time.Duration { return r.cfg.Truth }

func (r *containers) withinSilence(stepBound time.Duration) time.Duration {
	return r.cfg.Truth + extraSilence(stepBound)
}

// fault injects a fault into a worker and restores it, and checks that schedulers show both in
// time.
func (r *containers) fault(ctx context.Context, kind Kind, lasts time.Duration) (string, error) {
	text, _, err := r.under(ctx, false, func(c *client, s *Stage) (string, error) {
		f, since, err := r.hit(ctx, c, s, kind)
		if err != nil {
			return "", err
		}
		within := r.within
		if kind != Kill {
			within = r.withinSilence
		}
		gone, wrong := r.shows(ctx, f.Node, lost, since, within)
		sleep(ctx, time.Until(since.Add(lasts)))
		f.Over = time.Since(c.began)
		if err := r.restore(context.WithoutCancel(ctx), kind, f.Node); err != nil {
			return "", errors.Join(wrong, err)
		}
		back, late := r.shows(ctx, f.Node, ready, time.Now(), r.within)
		return fmt.Sprintf("%s with %d streams, shown after %s, again after %s", f.Node, f.Busy, seconds(gone), seconds(back)), errors.Join(wrong, late)
	})
	return text, err
}

// drain drains a worker, checks that it gets no stream, and takes the drain back.
func (r *containers) drain(ctx context.Context) (string, error) {
	text, _, err := r.under(ctx, false, func(c *client, s *Stage) (string, error) {
		f, since, err := r.hit(ctx, c, s, drain)
		if err != nil {
			return "", err
		}
		text, wrong := r.drained(ctx, c, f, since)
		f.Over = time.Since(c.began)
		before := c.live.beganOn(f.Node)
		if err := r.restore(context.WithoutCancel(ctx), drain, f.Node); err != nil {
			return text, errors.Join(wrong, err)
		}
		_, late := r.shows(ctx, f.Node, ready, time.Now(), r.within)
		for deadline := time.Now().Add(busyTimeout); c.live.beganOn(f.Node) == before; {
			if time.Now().After(deadline) || !sleep(ctx, 20*time.Millisecond) {
				late = errors.Join(late, fmt.Errorf("%s serves again and gets no stream", f.Node))
				break
			}
		}
		return text, errors.Join(wrong, late)
	})
	return text, err
}

// drained waits until a draining worker has no stream, and fails if it gets one after that.
func (r *containers) drained(ctx context.Context, c *client, f *Fault, since time.Time) (string, error) {
	shown, wrong := r.shows(ctx, f.Node, draining, since, r.within)
	began := time.Now()
	if !r.schedulers[0].until(ctx, emptyTimeout, func(workers []*pb.FleetWorker) bool { return empty(workers, f.Node) }) {
		return "", errors.Join(wrong, fmt.Errorf("%s drains and still has streams after %v", f.Node, emptyTimeout))
	}
	ended := time.Since(began)
	sleep(ctx, inFlight)
	before := c.live.beganOn(f.Node)
	sleep(ctx, quietTime)
	if more := c.live.beganOn(f.Node) - before; more > 0 {
		wrong = errors.Join(wrong, fmt.Errorf("%s drains and got %d new streams", f.Node, more))
	}
	return fmt.Sprintf("%s with %d streams, shown after %s, empty %s later", f.Node, f.Busy, seconds(shown), seconds(ended)), wrong
}

// empty reports whether a worker has no sequence.
func empty(workers []*pb.FleetWorker, id string) bool {
	for _, w := range workers {
		if r := w.GetReport(); r.GetWorkerId() == id && w.GetConnected() {
			return r.GetLoad().GetRunning()+r.GetLoad().GetWaiting() == 0
		}
	}
	return false
}

// scheduler kills one scheduler. Its own clients continue on another; the others' streams must not
// move.
func (r *containers) scheduler(ctx context.Context) (string, error) {
	victim := r.schedulers[len(r.schedulers)-1].name
	text, s, err := r.under(ctx, true, func(c *client, s *Stage) (string, error) {
		since, err := r.inject(ctx, Kill, victim)
		if err != nil {
			return "", err
		}
		s.Faults = append(s.Faults, Fault{Kind: Kill, Node: victim, At: since.Sub(c.began)})
		sleep(ctx, silentTime)
		err = r.restore(ctx, Kill, victim)
		s.Faults[0].Over = time.Since(c.began)
		return victim + " killed", errors.Join(err, r.whole(ctx))
	})
	if err != nil {
		return text, err
	}
	var why error
	for _, rec := range s.records {
		for _, m := range rec.moves {
			if m.from != victim {
				return text, fmt.Errorf("a stream left %s, which was not killed: %s", m.from, failure(m.err))
			}
			if why == nil && m.arrivals > 0 {
				why = m.err
			}
		}
	}
	return fmt.Sprintf("%s, %d resumed by their clients, the first after %q", text, s.Resumes, failure(why)), nil
}

// restart restarts every worker and every scheduler in turn, as an upgrade does.
func (r *containers) restart(ctx context.Context) (string, error) {
	text, _, err := r.under(ctx, true, func(*client, *Stage) (string, error) {
		var wrong error
		for _, id := range r.workers {
			if err := r.again(ctx, id, "restart", "--time", stopSeconds); err != nil {
				return "", errors.Join(wrong, err)
			}
			_, late := r.shows(ctx, id, ready, time.Now(), r.within)
			wrong = errors.Join(wrong, late)
		}
		for _, s := range r.schedulers {
			if err := errors.Join(r.again(ctx, s.name, "restart", "--time", stopSeconds), r.whole(ctx)); err != nil {
				return "", errors.Join(wrong, err)
			}
		}
		return fmt.Sprintf("%d workers and %d schedulers in turn", len(r.workers), len(r.schedulers)), wrong
	})
	return text, err
}

// recreate replaces the container of every worker. The ids and the answers must stay the same.
func (r *containers) recreate(ctx context.Context) (string, error) {
	if err := r.refresh(ctx); err != nil {
		return "", err
	}
	before := r.ids
	if err := r.docker.compose(ctx, "up", "-d", "--no-deps", "--no-build", "--force-recreate", r.cfg.Service); err != nil {
		return "", err
	}
	if err := r.refresh(ctx); err != nil {
		return "", err
	}
	for name, id := range r.ids {
		if strings.HasPrefix(name, r.cfg.Service+"-") == (before[name] == id) {
			return "", fmt.Errorf("%s was container %s and is %s", name, before[name], id)
		}
	}
	if err := r.named(ctx); err != nil {
		return "", err
	}
	text, _, err := r.under(ctx, false, func(*client, *Stage) (string, error) { return "new containers have the old ids", nil })
	return text, err
}
