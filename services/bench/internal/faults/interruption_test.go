package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

const ms = time.Millisecond

// arriving returns a stream of a worker with a token at each of the times, in ms, which ends with
// the last.
func arriving(worker string, at ...int) *record {
	r := &record{worker: worker}
	for _, n := range at {
		r.arrivals = append(r.arrivals, arrival{at: time.Duration(n) * ms, tokens: 1})
		r.ended = time.Duration(n) * ms
	}
	return r
}

func TestInterruptionsFindResumedStreams(t *testing.T) {
	kill, freeze := Fault{Kind: Kill, Node: "w", At: 1000 * ms, Over: 2000 * ms}, Fault{Kind: Freeze, Node: "w", At: 1000 * ms, Over: 6000 * ms}
	type want struct {
		pause   time.Duration
		after   int
		resumed bool
	}
	for name, tc := range map[string]struct {
		record *record
		fault  Fault
		want   *want
	}{
		"after a kill":                         {arriving("w", 900, 1400, 1500), kill, &want{500 * ms, 1, true}},
		"after a kill, at once":                {arriving("w", 900, 990, 1040, 1100, 1200, 1300), kill, &want{100 * ms, 4, true}},
		"tokens in flight count":               {arriving("w", 900, 1005, 1900, 1950), kill, &want{895 * ms, 2, true}},
		"while its worker is frozen":           {arriving("w", 900, 2900, 3000), freeze, &want{2000 * ms, 1, true}},
		"only when its worker is thawed":       {arriving("w", 900, 6100, 6200), freeze, &want{5200 * ms, 1, false}},
		"of another worker":                    {arriving("v", 900, 1400, 1500), kill, nil},
		"without a token before":               {arriving("w", 1400, 1500), kill, nil},
		"that ended before":                    {arriving("w", 800, 900), kill, nil},
		"that ended before a token was missed": {arriving("w", 900, 1010, 1100), kill, nil},
		"without a token after":                {arriving("w", 900), kill, nil},
		"without any token":                    {&record{}, kill, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := interruptions(tc.record, []Fault{tc.fault})
			if tc.want == nil {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Equal(t, *tc.want, want{got[0].pause, got[0].after, got[0].resumed})
		})
	}
}

func TestInterruptionsOfMovedStreams(t *testing.T) {
	faults := []Fault{
		{Kind: Kill, Node: "w", At: 1000 * ms, Over: 2000 * ms},
		{Kind: Kill, Node: "w", At: 3000 * ms, Over: 4000 * ms},
		{Kind: Kill, Node: "v", At: 5000 * ms, Over: 6000 * ms},
	}
	got := interruptions(arriving("w", 900, 1400, 2900, 3400, 4900, 6100, 6200), faults)
	require.Len(t, got, 2)
	require.Equal(t, 0, got[0].fault)
	require.True(t, got[0].resumed)
	require.Equal(t, 2, got[1].fault, "a pause longer than the fault may cause counts for it")
	require.Equal(t, 1200*ms, got[1].pause)
	require.False(t, got[1].resumed)
	require.True(t, got[1].moved)

	got = interruptions(arriving("w", 900, 1400, 2900, 7100, 7200), faults)
	require.Len(t, got, 2, "one pause counts for one fault")
	require.Equal(t, 1, got[1].fault)

	faults = []Fault{{Kind: Freeze, Node: "w", At: 1000 * ms, Over: 2000 * ms}, {Kind: Freeze, Node: "w", At: 3000 * ms, Over: 4000 * ms}}
	require.Len(t, interruptions(arriving("w", 900, 5000, 5100), faults), 1, "also of the same worker")
}

func TestResumeAfterSomeArrivals(t *testing.T) {
	r := recordOf(t, events()...)
	require.Equal(t, "w1", r.worker)
	require.Equal(t, 4, r.before(6*ms))
	req := &pb.GenerateRequest{Model: "m"}
	got := r.resumeAfter(4, req).GetResume()
	require.Len(t, got, 2)
	require.Equal(t, []uint32{10, 11, 12}, got[0].GetTokenIds())
	require.EqualValues(t, 3, got[0].GetTextBytes())
	require.True(t, got[0].GetFinished())
	require.Equal(t, []uint32{20}, got[1].GetTokenIds())
	require.False(t, got[1].GetFinished())
	require.Empty(t, req.GetResume())
	require.Empty(t, r.resumeAfter(0, req).GetResume()[1].GetTokenIds())
}

// recordOf returns a record of events that arrived a millisecond apart.
func recordOf(t *testing.T, events ...*pb.GenerateResponse) *record {
	t.Helper()
	r := &record{}
	for i, e := range events {
		require.NoError(t, r.add(e, time.Duration(i)*ms))
	}
	return r
}

func TestRecordContinuesElsewhere(t *testing.T) {
	req := &pb.GenerateRequest{Model: "m"}
	got := recordOf(t, events()[:7]...)
	again := got.again(req)
	require.Empty(t, req.GetResume(), "the request itself is unchanged")
	require.Equal(t, "c", again.GetExpectClassId())
	require.Len(t, again.GetResume(), 2)
	first, second := again.GetResume()[0], again.GetResume()[1]
	require.Equal(t, []uint32{10, 11, 12}, first.GetTokenIds())
	require.True(t, first.GetFinished())
	require.Equal(t, []uint32{20}, second.GetTokenIds())
	require.EqualValues(t, 1, second.GetTextBytes())
	require.False(t, second.GetFinished())

	require.ErrorIs(t, got.add(started("w2", 3, 0), 0), errLost, "the rest must begin where this ends")
	for _, e := range []*pb.GenerateResponse{started("w2", 3, 1), tokens(1, 1, "", 21), finished(1, 2)} {
		require.NoError(t, got.add(e, 0))
	}
	require.NoError(t, got.transcript.Same(&recordOf(t, events()...).transcript))
}

func TestRecordWithoutTokensIsReset(t *testing.T) {
	req := &pb.GenerateRequest{Model: "m"}
	got := recordOf(t, events()[:2]...)
	require.Same(t, req, got.again(req))
	for _, e := range events() {
		require.NoError(t, got.add(e, 0))
	}
}
