package server_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/route"
	"github.com/millrace/millrace/services/scheduler/internal/server"
)

// fleetOf returns n members.
func fleetOf(n int) []fleet.Member {
	members := make([]fleet.Member, n)
	for i := range members {
		members[i] = fleet.Member{Address: fmt.Sprintf("worker-%d:7071", i), Connected: true, Load: &route.Load{}}
	}
	return members
}

func TestFingerprintCostIsLinear(t *testing.T) {
	cost := func(n int) uint64 {
		members := fleetOf(n)
		least := uint64(math.MaxUint64)
		for range 5 { // the runtime also counts allocations of other goroutines
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NotEmpty(t, server.Fingerprint(members))
			runtime.ReadMemStats(&after)
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		return least
	}
	require.Less(t, cost(4000), 8*cost(1000), "bytes allocated for four times the members")
}

func TestFingerprintChangesWithTheFleet(t *testing.T) {
	base := server.Fingerprint(fleetOf(3))
	require.Equal(t, base, server.Fingerprint(fleetOf(3)))
	for name, change := range map[string]func([]fleet.Member) []fleet.Member{
		"a member joins": func(m []fleet.Member) []fleet.Member { return append(m, fleetOf(1)...) },
		"one is lost":    func(m []fleet.Member) []fleet.Member { m[1].Connected = false; return m },
		"a problem":      func(m []fleet.Member) []fleet.Member { m[2].Problem = "gone"; return m },
		"a request":      func(m []fleet.Member) []fleet.Member { m[0].Load.Begin(1, 0); return m },
	} {
		t.Run(name, func(t *testing.T) { require.NotEqual(t, base, server.Fingerprint(change(fleetOf(3)))) })
	}
	require.NotEmpty(t, server.Fingerprint(nil), "an empty fleet is reported, too")
}
