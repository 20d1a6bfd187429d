package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// constrained returns request i: its answer is long, and one of three constraints decides its form.
func constrained(i int) *pb.GenerateRequest {
	in := ask(stories, 400)
	in.Stopping.IgnoreEos = nil
	in.Sampling = &pb.Sampling{Seed: ptr(uint64(40 + i))}
	in.Response = &pb.ResponseOptions{OutputLogprobs: ptr(true)}
	in.Guided = []*pb.Guided{
		{Constraint: &pb.Guided_JsonSchema{JsonSchema: `{"type":"array","minItems":20,"maxItems":24,"items":{"type":"object","properties":{
			"name":{"type":"string","maxLength":9},"age":{"type":"integer","minimum":0,"maximum":99}},"required":["name","age"],"additionalProperties":false}}`}},
		{Constraint: &pb.Guided_Regex{Regex: `([A-Z][a-z]{1,8}( [a-z]{1,7}){2,5}\.\n){20,25}`}},
		{Constraint: &pb.Guided_Grammar{Grammar: "root ::= (\"(\" [a-z ]{20,40} root \")\" | \"x\")"}},
	}[i%3]
	return in
}

var sentences = regexp.MustCompile(`^([A-Z][a-z]{1,8}( [a-z]{1,7}){2,5}\.\n){20,25}$`)

// A worker dies under constrained streams. They go on under their grammars, bit by bit as if nothing had
// happened, and what ends as a text of its constraint is one.
func TestConstrainedStreamsOutliveTheirWorker(t *testing.T) {
	t.Parallel()
	args := []string{"--device", "cpu", "--load", stories}
	workers := map[string]*server{"w1": startWorker(t, "w1", args...), "w2": startWorker(t, "w2", args...)}
	s := startScheduler(t, []*server{workers["w1"], workers["w2"]}, patient...)
	s.untilServed(t, stories, 2)
	var requests []*pb.GenerateRequest
	for i := range 6 {
		requests = append(requests, constrained(i+1))
	}
	held(requests[5]) // of 20 objects at least, so it is longer than what the buffers hold
	want, ended := undisturbed(t, workers["w1"], requests), 0
	next := 0
	calls := beginAll(t, s, len(requests), func() *pb.GenerateRequest { next++; return requests[next-1] })
	workers[calls[len(calls)-1].started.GetWorkerId()].kill()
	for i, c := range calls {
		got := c.end()
		requireSame(t, want[i], got, fmt.Sprint("request ", i))
		if got.finished.GetReason() != pb.FinishReason_FINISH_REASON_STOP {
			continue
		}
		ended++
		switch (i + 1) % 3 {
		case 0:
			var people []struct{ Name *string }
			require.NoError(t, json.Unmarshal([]byte(got.text), &people), got.text)
			require.GreaterOrEqual(t, len(people), 20)
		case 1:
			require.Regexp(t, sentences, got.text)
		}
	}
	require.Eventually(t, func() bool { return s.resumes() > 0 }, hang, 10*time.Millisecond, "none was continued: nothing is proven")
	t.Logf("%d of %d answers ended within their tokens", ended, len(calls))
}

// A tenant sends many schemas, most of which are hostile. The streams of another tenant have their tokens, and the memory of the
// worker stays bounded. With 10 000 schemas that are accepted the worker grew by 240 MB, and the largest gap of the other
// stream was 80 ms, on two busy cores.
func TestSchemasOfATenantDisturbNoOther(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", "--device", "cpu", "--load", stories)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, stories, 1)
	quiet := ask(stories, 300)
	quiet.FairnessId = ptr("quiet")
	want, before := undisturbed(t, w, []*pb.GenerateRequest{quiet})[0], w.resident(t)
	schemas := []func(i int) string{
		func(i int) string { return fmt.Sprintf(`{"type":"object","properties":{"k%d":{"type":"string"}}}`, i) },
		func(i int) string {
			return fmt.Sprintf(`{"properties":{"k%d%s":{"unevaluatedItems":{}}}}`, i, strings.Repeat("k", 100<<10))
		},
		func(i int) string { return fmt.Sprintf(`{"type":"string","pattern":"^(a|b)*a(a|b){%d}$"}`, 11+i%3) },
		func(i int) string {
			return strings.Repeat(`{"type":"array","minItems":9,"maxItems":999,"items":`, 20) + fmt.Sprint(`{"maximum":`, i, "}") + strings.Repeat("}", 20)
		},
	}
	ctx, stop := context.WithCancel(within(t))
	var crowd errgroup.Group
	var sent atomic.Int64
	for range 8 {
		crowd.Go(func() error {
			for ctx.Err() == nil {
				i := int(sent.Add(1))
				in := ask(stories, 20)
				in.Stopping.IgnoreEos, in.FairnessId = nil, ptr("many")
				in.Guided = &pb.Guided{Constraint: &pb.Guided_JsonSchema{JsonSchema: schemas[i%len(schemas)](i)}}
				if got := generate(ctx, s.infer, in); got.err != nil && ctx.Err() == nil && rpc.Reason(got.err) != reason.InvalidGrammar {
					return got.err
				}
			}
			return nil
		})
	}
	enough := int64(200)
	if raced {
		enough = 50
	}
	for n := 0; n < 3 || sent.Load() < enough; n++ {
		requireSame(t, want, generate(within(t), s.infer, quiet), "beside others")
	}
	stop()
	require.NoError(t, crowd.Wait())
	w.untilIdle(t)
	grown := w.resident(t) - before
	t.Logf("%d schemas: the worker grew by %s", sent.Load(), mib(grown))
	if !raced { // the detector takes memory of its own
		require.Less(t, grown, int64(640<<20), "with names of properties that do not count it was 900 MB")
	}
}
