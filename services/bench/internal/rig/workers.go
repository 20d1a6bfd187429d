package rig

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

const (
	// downTime is how long a killed container stays away, cutTime how long one is frozen or cut off.
	downTime = time.Second
	cutTime  = 5 * time.Second
	// killPause and silentPause are how long a stream may pause because its worker was killed or became silent, beside what it takes
	// to resume it.
	killPause   = time.Second
	silentPause = 3 * time.Second
	// beginning is the part of a stream, one in so many, in which it has just begun. On a slow machine all of it takes longer, as
	// what breaks a container does.
	beginning = 8
	// underWay is how long what a worker has sent may take to clients.
	underWay = 100 * time.Millisecond
	// wholeTimeout bounds the wait for everything to be up.
	wholeTimeout = 3 * time.Minute
	// stopSeconds are more than a server's drain timeout.
	stopSeconds = "45"
)

// worker is the id of worker n, from 1.
func (r *rig) worker(n int) string { return fmt.Sprintf("%s-%d", r.cfg.Service, n) }

// whole waits until every scheduler shows every worker as ready.
func (r *rig) whole(ctx context.Context) error {
	for n := range r.cfg.Workers {
		id := r.worker(n + 1)
		for _, e := range r.entries {
			if !e.until(ctx, wholeTimeout, func(workers []*pb.FleetWorker) bool { return stateOf(workers, id, r.cfg.Model) == ready }) {
				return fmt.Errorf("%s has not shown %s with %s ready within %v", e.name, id, r.cfg.Model, wholeTimeout)
			}
		}
	}
	return nil
}

// named is whole, and checks that every worker has the id of its container.
func (r *rig) named(ctx context.Context) error {
	if err := r.whole(ctx); err != nil {
		return err
	}
	for n := range r.cfg.Workers {
		id := r.worker(n + 1)
		host, err := r.docker.on(ctx, id, "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
		if err != nil {
			return err
		}
		for _, e := range r.entries {
			if !e.until(ctx, r.cfg.Truth, func(workers []*pb.FleetWorker) bool { return at(workers, host) == id }) {
				return fmt.Errorf("%s does not show %s at %s, where its container is", e.name, id, host)
			}
		}
	}
	return nil
}

// strike is the breaking of a worker.
type strike struct {
	board   *board
	worker  string
	at      time.Time
	streams map[*answer]course // that it had just before
}

// strike breaks the busiest worker when many of its streams have no more than so many tokens, so that they are not at their ends
// before it is broken. breakIt tells when that was.
func (l *load) strike(ctx context.Context, many, early int, breakIt func(id string) (time.Time, error)) (strike, error) {
	s := strike{board: &l.board}
	for until := time.Now().Add(busyTimeout); ; {
		var n int
		if s.worker, n = l.board.busiest(early); n >= many {
			break
		}
		if time.Now().After(until) || !sleep(ctx, 5*time.Millisecond) {
			return s, fmt.Errorf("within %v no worker had %d streams with %d tokens at most: %w", busyTimeout, many, early, errIdle)
		}
	}
	s.streams = l.board.open(s.worker)
	var err error
	s.at, err = breakIt(s.worker)
	return s, err
}

// strike breaks the container of the busiest worker, known before that is chosen: each run of the docker program takes time in which
// streams come to their ends.
func (r *rig) strike(ctx context.Context, l *load, breakIt func(container string) (time.Time, error)) (strike, error) {
	containers, err := r.docker.containers(ctx)
	if err != nil {
		return strike{}, err
	}
	return l.strike(ctx, r.many(), r.early(), func(id string) (time.Time, error) { return breakIt(containers[id]) })
}

// cut says in the middle of how many streams the worker was: of those that had not ended well when what was on its way to clients
// had come to them. Without any, nothing was at stake, and that is an error.
func (l *load) cut(s strike) (string, error) {
	n := l.board.cut(s.streams, s.at.Add(underWay))
	if n == 0 {
		return s.worker, fmt.Errorf("%s was in the middle of no stream: %w", s.worker, errIdle)
	}
	return fmt.Sprintf("%s with %d streams", s.worker, n), nil
}

// went checks how long the streams of a broken worker paused, when all have ended.
func (r *rig) went(s strike, allowed time.Duration, text string, err error) (string, error) {
	if err != nil {
		return text, err
	}
	pause := s.board.pause(s.streams)
	if allowed += r.resume; pause > allowed {
		err = fmt.Errorf("a stream of %s paused for %s, want %s at most", s.worker, seconds(pause), seconds(allowed))
	}
	return fmt.Sprintf("%s, %s in those of %s", text, seconds(pause), s.worker), err
}

// kill ends a worker without a word, and starts it again.
func (r *rig) kill(ctx context.Context) (string, error) {
	var s strike
	text, _, err := r.under(ctx, false, func(ctx context.Context, l *load) (_ string, err error) {
		s, err = r.strike(ctx, l, func(container string) (time.Time, error) {
			if _, err := r.docker.run(ctx, "kill", "--signal", "KILL", container); err != nil {
				return time.Time{}, err
			}
			return r.docker.ended(ctx, container)
		})
		if err != nil {
			return "", err
		}
		gone, wrong := r.showing(ctx, s.worker, lost, s.at)
		sleep(ctx, downTime)
		back, late := r.again(ctx, s.worker, "start")
		text, idle := l.cut(s)
		return fmt.Sprintf("%s, shown after %s, again %s after it served", text, seconds(gone), seconds(back)), first(wrong, late, idle)
	})
	return r.went(s, killPause, text, err)
}

// freeze stops every thread of a worker, whose connections stay open.
func (r *rig) freeze(ctx context.Context) (string, error) {
	return r.silence(ctx, func(ctx context.Context, container string) (func(context.Context) error, error) {
		_, err := r.docker.run(ctx, "pause", container)
		return func(ctx context.Context) error {
			_, err := r.docker.run(ctx, "unpause", container)
			return err
		}, err
	})
}

// partition takes a worker off the network and puts it back.
func (r *rig) partition(ctx context.Context) (string, error) { return r.silence(ctx, r.docker.cut) }

// silence makes a worker silent for cutTime.
func (r *rig) silence(ctx context.Context, breakIt func(ctx context.Context, container string) (mend func(context.Context) error, err error)) (string, error) {
	var s strike
	text, _, err := r.under(ctx, false, func(ctx context.Context, l *load) (_ string, err error) {
		var mend func(context.Context) error
		s, err = r.strike(ctx, l, func(container string) (_ time.Time, err error) {
			mend, err = breakIt(ctx, container)
			return time.Now(), err
		})
		if err != nil {
			return "", err
		}
		gone, wrong := r.noticing(ctx, s.worker, s.at)
		sleep(ctx, time.Until(s.at.Add(cutTime)))
		text, idle := l.cut(s)
		if err := mend(context.WithoutCancel(ctx)); err != nil {
			return "", err
		}
		back, late := r.showing(ctx, s.worker, ready, time.Now())
		return fmt.Sprintf("%s, shown after %s, again after %s", text, seconds(gone), seconds(back)), first(wrong, late, idle)
	})
	return r.went(s, silentPause, text, err)
}

// many streams on one worker are half of its share.
func (r *rig) many() int { return max(1, r.cfg.Streams/r.cfg.Workers/2) }

// early are the tokens that a stream has at most while it has just begun.
func (r *rig) early() int { return r.cfg.Tokens / beginning }

// again starts or restarts a container, waits until its server says by itself that it serves, and then until schedulers show it.
func (r *rig) again(ctx context.Context, id string, verb ...string) (time.Duration, error) {
	if _, err := r.docker.on(ctx, id, verb...); err != nil {
		return 0, err
	}
	if err := r.serves(ctx, id, "7071"); err != nil {
		return 0, err
	}
	return r.showing(ctx, id, ready, time.Now())
}

// serves waits until the server in a container says that it serves.
func (r *rig) serves(ctx context.Context, name, port string) error {
	ctx, cancel := context.WithTimeout(ctx, wholeTimeout)
	defer cancel()
	_, err := r.docker.inside(ctx, name, "sh", "-c", "until millrace health --target 127.0.0.1:"+port+" >/dev/null 2>&1; do sleep 0.1; done")
	if err != nil {
		return fmt.Errorf("%s does not serve: %w", name, err)
	}
	return nil
}

// first is the first error that there is.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// recreate makes every worker's container anew: the ids stay, and so do the answers.
func (r *rig) recreate(ctx context.Context) (string, error) {
	before, err := r.docker.containers(ctx)
	if err != nil {
		return "", err
	}
	if err := r.docker.compose(ctx, "up", "-d", "--no-deps", "--no-build", "--force-recreate", r.cfg.Service); err != nil {
		return "", err
	}
	after, err := r.docker.containers(ctx)
	if err != nil {
		return "", err
	}
	for name, id := range after {
		if strings.HasPrefix(name, r.cfg.Service+"-") == (before[name] == id) {
			return "", fmt.Errorf("%s was container %s and is %s", name, before[name], id)
		}
	}
	if err := r.named(ctx); err != nil {
		return "", err
	}
	text, _, err := r.under(ctx, false, func(context.Context, *load) (string, error) { return "new containers have the old ids", nil })
	return text, err
}
