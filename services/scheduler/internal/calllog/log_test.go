package calllog_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/calllog"
)

// begun returns a log whose client has `started`.
func begun(t testing.TB, in *pb.GenerateRequest) *calllog.Log {
	t.Helper()
	raw, err := proto.Marshal(in)
	require.NoError(t, err)
	l := calllog.New(raw, in, time.Unix(1, 0))
	l.NextRequest(false, calllog.Elapsed{})
	_, err = l.Record(marshal(t, &pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: &pb.Started{PromptTokens: 6}}}))
	require.NoError(t, err)
	return l
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	require.NoError(t, err)
	return raw
}

// frames returns n frames of one token each.
func frames(t testing.TB, n int) [][]byte {
	t.Helper()
	out := make([][]byte, n)
	for i := range out {
		out[i] = marshal(t, &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{
			TokenIndex: uint32(i), TokenIds: []uint32{uint32(i*37) % 150_000}, Text: " token"}}})
	}
	return out
}

func TestNewCopiesTheRequest(t *testing.T) {
	in := &pb.GenerateRequest{Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: "once"}}
	raw := marshal(t, in)
	l := calllog.New(raw, in, time.Unix(1, 0))
	want := slices.Clone(raw)
	clear(raw) // the caller owns these bytes
	request, rest := l.NextRequest(false, calllog.Elapsed{})
	require.Equal(t, want, request)
	require.Empty(t, rest)
	require.Equal(t, len(request), cap(request), "the log holds it for as long as the stream, so without spare capacity")
}

func TestRecordRejectsMalformedFrames(t *testing.T) {
	// A frame that is not an event is a violation. An event of a later version is not: it is
	// forwarded.
	l := begun(t, &pb.GenerateRequest{Model: "m"})
	for _, raw := range [][]byte{{0x80}, {0x22, 0, 0x2a, 0}, {0x0a, 1, 0x80}} {
		_, err := l.Record(raw)
		require.ErrorIs(t, err, calllog.ErrViolation)
	}
	v, err := l.Record([]byte{0xc2, 0x3e, 1, 7})
	require.NoError(t, err)
	require.Zero(t, v)
}

func TestRecordKeepsNoReferenceToAFrame(t *testing.T) {
	// The transport owns the bytes of a frame and reuses them.
	l := begun(t, &pb.GenerateRequest{Model: "m"})
	for _, f := range frames(t, 40) {
		_, err := l.Record(f)
		require.NoError(t, err)
		for i := range f {
			f[i] = 0xff
		}
	}
	request, rest := l.NextRequest(false, calllog.Elapsed{})
	in := &pb.GenerateRequest{}
	require.NoError(t, proto.Unmarshal(slices.Concat(request, rest), in))
	for i, id := range in.GetResume()[0].GetTokenIds() {
		require.EqualValues(t, i*37, id)
	}
	require.EqualValues(t, 40*len(" token"), in.GetResume()[0].GetTextBytes())
}

func TestRecordAllocatesOnlyForTokenIDs(t *testing.T) {
	l := begun(t, &pb.GenerateRequest{Model: "m"})
	all, next := frames(t, 20_000), 0
	allocations := testing.AllocsPerRun(len(all)-1, func() {
		if _, err := l.Record(all[next]); err != nil {
			t.Error(err)
		}
		next++
	})
	require.Zero(t, allocations, "on average, because the list of ids grows from time to time")
}

func TestResumeDeliversEveryEventOnce(t *testing.T) {
	// An answer is cut after any number of events, twice, and resumed. The client has the whole answer
	// in the end. The worker here (answer) is a second, naive implementation of the contract: it
	// computes the whole answer and leaves out what `resume` lists.
	in := &pb.GenerateRequest{Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: "once"},
		Sampling: &pb.Sampling{NumSequences: proto.Int32(2)},
		Response: &pb.ResponseOptions{EchoPrompt: proto.Bool(true), Progress: proto.Bool(true)}}
	whole := answer(&pb.GenerateRequest{})
	for first := 0; first <= len(whole); first++ {
		for second := 0; second <= len(whole); second++ {
			raw := marshal(t, in)
			l := calllog.New(raw, in, time.Unix(1, 0))
			var got []*pb.GenerateResponse
			for _, cut := range []int{first, second, len(whole)} {
				if l.Complete() {
					break
				}
				request, rest := l.NextRequest(false, calllog.Elapsed{})
				asked := &pb.GenerateRequest{}
				require.NoError(t, proto.Unmarshal(slices.Concat(request, rest), asked))
				events := answer(asked)
				for _, e := range events[:min(cut, len(events))] {
					frame := marshal(t, e)
					v, err := l.Record(frame)
					require.NoError(t, err, "cut at %d and %d", first, second)
					if v.Drop {
						continue
					}
					if v.Replacement != nil {
						frame = v.Replacement
					}
					sent := &pb.GenerateResponse{}
					require.NoError(t, proto.Unmarshal(frame, sent))
					got = append(got, sent)
				}
			}
			require.True(t, l.Complete())
			require.Len(t, got, len(whole), "cut at %d and %d", first, second)
			for i := range whole {
				require.True(t, proto.Equal(whole[i], got[i]), "event %d, cut at %d and %d: %v and not %v", i, first, second, got[i], whole[i])
			}
		}
	}
}

// answer returns the events that a worker sends for a request.
func answer(in *pb.GenerateRequest) (events []*pb.GenerateResponse) {
	started := &pb.Started{PromptTokens: 3, Seed: 5, ClassId: "c"}
	had := make([]*pb.Resume, 2)
	for _, r := range in.GetResume() {
		had[r.GetOutputIndex()] = r
		started.ResumedTokens = append(started.ResumedTokens, uint32(len(r.GetTokenIds())))
	}
	for n := range uint32(3) {
		events = append(events, &pb.GenerateResponse{Event: &pb.GenerateResponse_Progress{Progress: &pb.Progress{PrefilledTokens: n + 1}}})
	}
	events = append(events, &pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: started}})
	for n := range uint32(3) {
		if len(in.GetResume()) == 0 {
			events = append(events, &pb.GenerateResponse{Event: &pb.GenerateResponse_Prompt{
				Prompt: &pb.PromptTokens{TokenIndex: n, TokenIds: []uint32{n}}}})
		}
	}
	for k := range uint32(4) {
		for i := range uint32(2) {
			if r := had[i]; r.GetFinished() || int(k) < len(r.GetTokenIds()) || k == 3 && i == 0 {
				continue
			}
			events = append(events, &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{
				OutputIndex: i, TokenIndex: k, TokenIds: []uint32{100*i + k}, Text: "漢"}}})
		}
		if k == 2 && !had[0].GetFinished() {
			events = append(events, &pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
				Usage: &pb.Usage{CompletionTokens: 3}}}})
		}
	}
	if !had[1].GetFinished() {
		events = append(events, &pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
			OutputIndex: 1, Usage: &pb.Usage{CompletionTokens: 4}}}})
	}
	return events
}

// BenchmarkRecord measures a frame of one token. The yardstick is BenchmarkDecode with the same
// frame.
func BenchmarkRecord(b *testing.B) {
	all := frames(b, 4096)
	var l *calllog.Log
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%len(all) == 0 {
			l = begun(b, &pb.GenerateRequest{Model: "m"})
		}
		if _, err := l.Record(all[i%len(all)]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	all := frames(b, 4096)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := proto.Unmarshal(all[i%len(all)], &pb.GenerateResponse{}); err != nil {
			b.Fatal(err)
		}
	}
}
