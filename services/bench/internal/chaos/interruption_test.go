package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

const ms = time.Millisecond

// seen is a stream of a worker with a token at each of the times, in ms, which ends with the last.
func seen(worker string, at ...int) *record {
	r := &record{worker: worker}
	for _, n := range at {
		r.arrivals = append(r.arrivals, arrival{at: time.Duration(n) * ms, tokens: 1})
		r.ended = time.Duration(n) * ms
	}
	return r
}

func TestAStreamThatGoesOnWithoutItsWorkerWasResumed(t *testing.T) {
	kill, freeze := Fault{Kind: Kill, Node: "w", At: 1000 * ms, Over: 2000 * ms}, Fault{Kind: Freeze, Node: "w", At: 1000 * ms, Over: 6000 * ms}
	type want struct {
		gap     time.Duration
		behind  int
		resumed bool
	}
	for name, tc := range map[string]struct {
		record *record
		fault  Fault
		want   *want
	}{
		"after a kill":                          {seen("w", 900, 1400, 1500), kill, &want{500 * ms, 1, true}},
		"after a kill, at once":                 {seen("w", 900, 990, 1040, 1100, 1200, 1300), kill, &want{100 * ms, 4, true}},
		"tokens that were under way count":      {seen("w", 900, 1005, 1900, 1950), kill, &want{895 * ms, 2, true}},
		"while its worker is frozen":            {seen("w", 900, 2900, 3000), freeze, &want{2000 * ms, 1, true}},
		"only when its worker is thawed":        {seen("w", 900, 6100, 6200), freeze, &want{5200 * ms, 1, false}},
		"of another worker":                     {seen("v", 900, 1400, 1500), kill, nil},
		"without a token before":                {seen("w", 1400, 1500), kill, nil},
		"that ended before":                     {seen("w", 800, 900), kill, nil},
		"that ended before anybody missed much": {seen("w", 900, 1010, 1100), kill, nil},
		"without a token after":                 {seen("w", 900), kill, nil},
		"without any token":                     {&record{}, kill, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := interruptions(tc.record, []Fault{tc.fault})
			if tc.want == nil {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Equal(t, *tc.want, want{got[0].gap, got[0].behind, got[0].resumed})
		})
	}
}

func TestWhereAStreamIsAfterItsFirstInterruptionIsNotGuessed(t *testing.T) {
	faults := []Fault{
		{Kind: Kill, Node: "w", At: 1000 * ms, Over: 2000 * ms},
		{Kind: Kill, Node: "w", At: 3000 * ms, Over: 4000 * ms},
		{Kind: Kill, Node: "v", At: 5000 * ms, Over: 6000 * ms},
	}
	got := interruptions(seen("w", 900, 1400, 2900, 3400, 4900, 6100, 6200), faults)
	require.Len(t, got, 2)
	require.Equal(t, 0, got[0].fault)
	require.True(t, got[0].resumed)
	require.Equal(t, 2, got[1].fault, "a longer pause than a fault allows is held against it")
	require.Equal(t, 1200*ms, got[1].gap)
	require.False(t, got[1].resumed)
	require.True(t, got[1].moved)

	got = interruptions(seen("w", 900, 1400, 2900, 7100, 7200), faults)
	require.Len(t, got, 2, "one pause is one fault's")
	require.Equal(t, 1, got[1].fault)

	faults = []Fault{{Kind: Freeze, Node: "w", At: 1000 * ms, Over: 2000 * ms}, {Kind: Freeze, Node: "w", At: 3000 * ms, Over: 4000 * ms}}
	require.Len(t, interruptions(seen("w", 900, 5000, 5100), faults), 1, "also of the same worker")
}

func TestAResumeIsAskedForAsItWas(t *testing.T) {
	r := &record{}
	for i, e := range whole() {
		require.NoError(t, r.add(e, time.Duration(i)*ms))
	}
	require.Equal(t, "w1", r.worker)
	require.Equal(t, 4, r.before(6*ms))
	req := &pb.GenerateRequest{Model: "m"}
	got := r.resumeBehind(4, req).GetResume()
	require.Len(t, got, 2)
	require.Equal(t, []uint32{10, 11, 12}, got[0].GetTokenIds())
	require.EqualValues(t, 3, got[0].GetTextBytes())
	require.True(t, got[0].GetFinished())
	require.Equal(t, []uint32{20}, got[1].GetTokenIds())
	require.False(t, got[1].GetFinished())
	require.Empty(t, req.GetResume())
	require.Empty(t, r.resumeBehind(0, req).GetResume()[1].GetTokenIds())
}
