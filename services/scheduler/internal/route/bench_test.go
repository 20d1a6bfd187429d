package route_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// report makes the first workers report a request's keys, each fewer than the one before. It
// returns the keys, which are 64 tokens apart.
func report(s *route.Snapshot, workers, keys int) []route.Key {
	all := make([]route.Key, keys)
	raw := make([]uint64, keys)
	random := rand.New(rand.NewPCG(uint64(keys), 7))
	for i := range all {
		raw[i] = random.Uint64()
		all[i] = route.Key{Key: raw[i], Tokens: int64(i+1) * 64}
	}
	for i := range workers {
		s.Workers[i].Models[1].Prefixes.Change(raw[:keys-i*keys/workers], nil)
	}
	return all
}

// BenchmarkPickAmong300Workers measures a routing decision, without hashing, in an index of 3
// million prefixes. Its yardstick is measured after each decision: a walk over one count of each
// worker, which is the least that a decision reads. If the p99 of the walk is far from its median,
// the machine was busy.
func BenchmarkPickAmong300Workers(b *testing.B) {
	const workers = 300
	for _, c := range []struct{ holders, keys int }{{0, 0}, {1, 40}, {300, 40}, {300, 384}} {
		b.Run(fmt.Sprintf("holders=%d/keys=%d", c.holders, c.keys), func(b *testing.B) {
			s := fleetOf(workers, 128)
			fill(s, 10_000)
			keys := report(s, c.holders, c.keys)
			random := rand.New(rand.NewPCG(1, 2))
			for range workers * 64 {
				reserve(b, s, random.Uint64())
			}
			r := route.Request{Model: "m", Prompt: 30_000, Sequences: 1, Keys: keys}
			took, walked := make([]time.Duration, 0, b.N), make([]time.Duration, 0, b.N)
			sum := int64(0)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				r.Tie = uint64(i) * 0x9e3779b97f4a7c15
				begun := time.Now()
				if _, err := route.Pick(s, r); err != nil {
					b.Fatal(err)
				}
				picked := time.Now()
				for j := range s.Workers {
					sum += s.Workers[j].Load.InFlight()
				}
				took, walked = append(took, picked.Sub(begun)), append(walked, time.Since(picked))
			}
			if sum == 0 {
				b.Fatal("no request is in flight")
			}
			for name, all := range map[string][]time.Duration{"pick": took, "walk": walked} {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)/2].Nanoseconds()), name+"-p50-ns")
				b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds()), name+"-p99-ns")
			}
		})
	}
}

// BenchmarkSnapshotOf300Workers measures NewSnapshot.
func BenchmarkSnapshotOf300Workers(b *testing.B) {
	s := fleetOf(300, 128)
	b.ReportAllocs()
	for range b.N {
		_ = route.NewSnapshot(true, s.Workers)
	}
}

// fill gives each worker different keys.
func fill(s *route.Snapshot, each int) {
	random := rand.New(rand.NewPCG(3, 4))
	keys := make([]uint64, each)
	for i := range s.Workers {
		for j := range keys {
			keys[j] = random.Uint64()
		}
		s.Workers[i].Models[1].Prefixes.Change(keys, nil)
	}
}

func reserve(b *testing.B, s *route.Snapshot, tie uint64) {
	b.Helper()
	c, err := route.Pick(s, route.Request{Model: "m", Prompt: 100, Sequences: 1, Tie: tie})
	if err != nil || !c.Reserve() {
		b.Fatal(err)
	}
	c.Started()
}
