package rig

import (
	"context"
	"fmt"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

const (
	// emptyTimeout bounds the wait for a draining worker to have no stream; quietTime is how long it then gets none.
	emptyTimeout = 2 * time.Minute
	quietTime    = 2 * time.Second
)

// drain asks a worker to end what it has, and takes that back.
func (r *rig) drain(ctx context.Context) (string, error) {
	text, _, err := r.under(ctx, false, func(ctx context.Context, l *load) (_ string, err error) {
		by := r.entries[0]
		s, err := l.strike(ctx, r.many(), r.early(), func(id string) (time.Time, error) {
			if _, err := by.fleet.DrainWorker(ctx, &pb.DrainWorkerRequest{WorkerId: id}); err != nil {
				return time.Time{}, fmt.Errorf("DrainWorker %s: %w", id, plain(err))
			}
			return time.Now(), nil
		})
		if err != nil {
			return "", err
		}
		id := s.worker
		defer func() { // also when something was wrong: the other sections want the worker
			if _, undone := by.fleet.UndrainWorker(context.WithoutCancel(ctx), &pb.UndrainWorkerRequest{WorkerId: id}); undone != nil {
				err = first(err, fmt.Errorf("UndrainWorker %s: %w", id, plain(undone)))
				return
			}
			_, late := r.showing(ctx, id, ready, time.Now())
			before := l.board.begun(id)
			for until := time.Now().Add(busyTimeout); l.board.begun(id) == before && time.Now().Before(until); {
				sleep(ctx, 20*time.Millisecond)
			}
			if l.board.begun(id) == before {
				late = first(late, fmt.Errorf("%s serves again and gets no stream", id))
			}
			err = first(err, late)
		}()
		shown, wrong := r.showing(ctx, id, draining, s.at)
		began := time.Now()
		if !by.until(ctx, emptyTimeout, func(workers []*pb.FleetWorker) bool { return empty(workers, id) }) {
			return "", first(wrong, fmt.Errorf("%s drains and still has streams after %v", id, emptyTimeout))
		}
		ended := time.Since(began)
		sleep(ctx, underWay) // beginnings of streams that it has given away
		had := l.board.begun(id)
		sleep(ctx, quietTime)
		if more := l.board.begun(id) - had; more > 0 {
			wrong = first(wrong, fmt.Errorf("%s drains and got %d new streams", id, more))
		}
		text, idle := l.cut(s)
		return fmt.Sprintf("%s, shown after %s, empty %s later", text, seconds(shown), seconds(ended)), first(wrong, idle)
	})
	return text, err
}

// empty says whether a worker reports no sequence.
func empty(workers []*pb.FleetWorker, id string) bool {
	for _, w := range workers {
		if r := w.GetReport(); r.GetWorkerId() == id && w.GetConnected() {
			return r.GetLoad().GetRunning()+r.GetLoad().GetWaiting() == 0
		}
	}
	return false
}

// scheduler kills one scheduler: its own clients go on with another, and the other's see nothing.
func (r *rig) scheduler(ctx context.Context) (string, error) {
	dies := r.entries[len(r.entries)-1]
	text, t, err := r.under(ctx, true, func(ctx context.Context, _ *load) (string, error) {
		if _, err := r.docker.on(ctx, dies.name, "kill", "--signal", "KILL"); err != nil {
			return "", err
		}
		sleep(ctx, cutTime)
		if err := r.back(ctx, dies.name); err != nil {
			return "", err
		}
		return dies.name + " killed", r.whole(ctx)
	})
	if err != nil {
		return text, err
	}
	for name, n := range t.moved {
		if name != dies.name {
			return text, fmt.Errorf("%d streams left %s, which was not killed", n, name)
		}
	}
	if t.resumed == 0 {
		return text, fmt.Errorf("no stream was in its middle when %s was killed: %w", dies.name, errIdle)
	}
	return text, nil
}

// back starts a scheduler again and waits until it serves.
func (r *rig) back(ctx context.Context, name string) error {
	if _, err := r.docker.on(ctx, name, "start"); err != nil {
		return err
	}
	return r.serves(ctx, name, "7070")
}

// restart restarts every worker and every scheduler in turn, as a new release does.
func (r *rig) restart(ctx context.Context) (string, error) {
	text, _, err := r.under(ctx, true, func(ctx context.Context, _ *load) (string, error) {
		var wrong error
		for n := range r.cfg.Workers {
			_, late := r.again(ctx, r.worker(n+1), "restart", "--time", stopSeconds)
			wrong = first(wrong, late)
		}
		for _, e := range r.entries {
			if _, err := r.docker.on(ctx, e.name, "restart", "--time", stopSeconds); err != nil {
				return "", first(wrong, err)
			}
			if err := first(r.serves(ctx, e.name, "7070"), r.whole(ctx)); err != nil {
				return "", first(wrong, err)
			}
		}
		return fmt.Sprintf("%d workers and %d schedulers in turn", r.cfg.Workers, len(r.entries)), wrong
	})
	return text, err
}
