package vectors

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/ondemand"
)

// Flight implements ondemand.Key: loads of two digests under one name are two loads.
func (t target) Flight() string { return t.codebook + "\x00" + t.digest }

// demand is a load of a codebook for the calls that want it.
type demand struct {
	vectors *Vectors
	target  target
	id      string // of the call that it was started for
}

// Wait implements ondemand.Load.
func (d *demand) Wait() error {
	_, err := d.vectors.loadCopies(rpc.WithRequestID(d.vectors.ctx, d.id), d.target, 1)
	return err
}

// load joins the load of a codebook and waits for its end. The error is ondemand.ErrStale or a
// status.
func (v *Vectors) load(ctx context.Context, t target, id string, generation uint64) error {
	f, err := v.loads.Join(t, generation, func() (*demand, error) {
		v.logger.Info("loading a codebook on demand", "codebook", t.codebook, "request_id", id)
		return &demand{v, t, id}, nil
	})
	if err != nil {
		return err
	}
	timer := time.NewTimer(v.cfg.OnDemand)
	defer timer.Stop()
	err = f.Wait(ctx, timer.C)
	switch {
	case errors.Is(err, ondemand.ErrTimeout):
		return stillLoading(t.codebook, v.cfg.OnDemand)
	case err != nil:
		return statusOf(err) // ctx's cause, or a status already
	}
	return nil
}

// ended logs a load that failed.
func (v *Vectors) ended(f *ondemand.Flight[target, *demand], _ int, _ time.Duration, err error) {
	if err != nil {
		v.logger.Warn("codebook not loaded on demand", "codebook", f.Key.codebook, "request_id", f.Load.id, "error", err)
	}
}
