package admission_test

import (
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// BenchmarkPlace leases and ends slots on 8 workers: from one caller, from 64 callers while slots
// are free, and from 1000 callers for 72 slots, so that most wait. The yardstick is route.Pick
// alone over the same snapshot in the same run.
func BenchmarkPlace(b *testing.B) {
	for name, c := range map[string]struct {
		callers int
		places  uint32
	}{"alone": {1, 128}, "together": {64, 128}, "waiting": {1000, 8}} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, 8, c.places, admission.MaxQueue(c.callers))
			request := one("", 0)
			request.Keys = []route.Key{{Key: 1, Tokens: 5}, {Key: 2, Tokens: 9}}
			snapshot := r.fleet.Snapshot()
			var picks []time.Duration
			for range 1000 {
				begun := time.Now()
				if _, err := route.Pick(&snapshot.Route, request); err != nil {
					b.Fatal(err)
				}
				picks = append(picks, time.Since(begun))
			}
			ctx := r.within()
			b.ReportAllocs()
			b.ResetTimer()
			var all sync.WaitGroup
			for i := range c.callers {
				all.Go(func() {
					for n := i; n < b.N; n += c.callers {
						l, err := r.Place(ctx, request)
						if err != nil {
							b.Error(err)
							return
						}
						runtime.Gosched() // so that others find the slot leased
						l.Progress(10)
						l.End()
					}
				})
			}
			all.Wait()
			b.StopTimer()
			slices.Sort(picks)
			b.ReportMetric(float64(picks[len(picks)/2].Nanoseconds()), "pick-p50-ns")
			b.ReportMetric(float64(r.stats().Queued)/float64(b.N), "queued/op")
		})
	}
}
