package e2e

import (
	"bufio"
	"io"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/telemetry/telemetrytest"
)

// Services as telemetry names them, and the name of a Generate call's spans.
const (
	clientService, schedulerService, workerService = "millrace", "millrace-scheduler", "millrace-worker"

	generateSpan = "millrace.v1.InferenceService/Generate"
)

// sending makes a server send its telemetry to a collector.
func sending(to *telemetrytest.Collector) func(*server) {
	return func(s *server) { s.env = to.Environment() }
}

// untilSpan waits for a span of a service for which holds is true.
func untilSpan(t *testing.T, from *telemetrytest.Collector, what string, holds func(telemetrytest.Span) bool) telemetrytest.Span {
	t.Helper()
	for deadline := time.Now().Add(hang); ; time.Sleep(20 * time.Millisecond) {
		all := from.Spans()
		if at := slices.IndexFunc(all, holds); at >= 0 {
			return all[at]
		}
		if time.Now().After(deadline) {
			for _, s := range all {
				t.Logf("%s %s %s in %s, trace %s", s.Service, s.GetName(), s.ID(), s.ParentID(), s.TraceID())
			}
			require.FailNow(t, "no span of "+what)
		}
	}
}

// child returns a span of a name within another.
func child(t *testing.T, from *telemetrytest.Collector, of telemetrytest.Span, service, name string, holds ...func(telemetrytest.Span) bool) telemetrytest.Span {
	t.Helper()
	return untilSpan(t, from, service+" "+name, func(s telemetrytest.Span) bool {
		for _, h := range holds {
			if !h(s) {
				return false
			}
		}
		return s.Service == service && s.GetName() == name && s.ParentID() == of.ID() && s.TraceID() == of.TraceID()
	})
}

func said(s telemetrytest.Span, key string) string { return s.Attribute(key).GetStringValue() }

// The client, the scheduler and the workers each send their spans to a collector, which gets one
// trace, also if a worker is killed during the stream and another one continues it.
func TestATraceLeadsFromTheClientToBothWorkers(t *testing.T) {
	t.Parallel()
	c := telemetrytest.Start(t)
	workers := map[string]*server{}
	for _, id := range []string{"w1", "w2"} {
		workers[id] = startWorkerWith(t, sending(c), id, paced...)
	}
	s := startSchedulerWith(t, sending(c), []*server{workers["w1"], workers["w2"]})
	s.untilServed(t, long, 2)

	// A client whose output is not read stops soon, so the stream is open when its worker is
	// killed.
	cmd := clientCommand(s.address, "generate", "-m", long, "a secret", "--temperature", "0", "--ignore-eos", "--json", "--max-tokens", "480",
		"--output-logprobs", "--output-candidates", "64")
	cmd.Env = append(cmd.Environ(), c.Environment()...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended unless the test failed
	lines := bufio.NewReader(out)
	started, err := lines.ReadBytes('\n')
	require.NoError(t, err)
	event := &pb.GenerateResponse{}
	require.NoError(t, protojson.Unmarshal(started, event))
	victim := event.GetStarted().GetWorkerId()
	require.Contains(t, workers, victim)
	for range 2 { // tokens
		_, err := lines.ReadString('\n')
		require.NoError(t, err)
	}
	workers[victim].kill()
	_, err = io.Copy(io.Discard, lines)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())

	call := untilSpan(t, c, "the client's call", func(s telemetrytest.Span) bool {
		return s.Service == clientService && s.GetName() == generateSpan
	})
	require.Empty(t, call.ParentID())
	require.Equal(t, long, said(call, "gen_ai.request.model"))
	require.EqualValues(t, 480, call.Attribute("gen_ai.usage.output_tokens").GetIntValue())
	relayed := child(t, c, call, schedulerService, generateSpan)
	require.Equal(t, tracepb.Span_SPAN_KIND_SERVER, relayed.GetKind())
	attempt := func(n int64) telemetrytest.Span {
		return child(t, c, relayed, schedulerService, "attempt", func(s telemetrytest.Span) bool { return s.Attribute("millrace.attempt").GetIntValue() == n })
	}
	first, second := attempt(1), attempt(2)
	require.Equal(t, victim, said(first, "millrace.worker.id"))
	require.Equal(t, tracepb.Status_STATUS_CODE_ERROR, first.GetStatus().GetCode())
	require.Equal(t, "WORKER_LOST", said(first, "millrace.reason"))
	require.NotEqual(t, victim, said(second, "millrace.worker.id"))
	require.Equal(t, "resumed", said(second, "millrace.attempt.cause"))
	require.Equal(t, first.GetSpanId(), second.GetLinks()[0].GetSpanId())
	require.EqualValues(t, 480, first.Attribute("millrace.tokens").GetIntValue()+second.Attribute("millrace.tokens").GetIntValue())

	served := child(t, c, second, workerService, generateSpan)
	require.Equal(t, said(second, "millrace.worker.id"), said(served, "millrace.worker.id"))
	require.Positive(t, served.Attribute("millrace.resumed_tokens").GetIntValue())
	require.Equal(t, said(relayed, "millrace.request.id"), said(served, "millrace.request.id"))
	for _, name := range []string{"prepare", "queue", "prefill", "decode"} {
		child(t, c, served, workerService, name)
	}
	for _, s := range c.Spans() {
		require.NotContains(t, s.String(), "secret", "no text of a prompt")
	}

	// The line of the call in both logs has the trace id.
	for _, of := range []*server{s, workers[said(second, "millrace.worker.id")]} {
		line := regexp.MustCompile(`finished call.*trace_id=` + call.TraceID())
		require.Eventually(t, func() bool { return line.MatchString(of.log.String()) }, hang, 10*time.Millisecond, of.name)
	}
}

func TestMeasuresByTheConventionsAreSent(t *testing.T) {
	t.Parallel()
	c := telemetrytest.Start(t)
	w := startWorkerWith(t, sending(c), "w1", "--device", "sim:step=1ms,decode=0s,prefill=0s", "--load", stories)
	s := startSchedulerWith(t, sending(c), []*server{w})
	s.untilServed(t, stories, 1)
	require.NoError(t, generateTokens(within(t), s, stories, 10))
	for _, service := range []string{schedulerService, workerService} {
		for _, name := range []string{
			"gen_ai.server.request.duration", "gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token", "gen_ai.client.token.usage",
		} {
			require.Eventually(t, func() bool {
				for _, m := range c.Metrics(service) {
					if m.GetName() == name && len(m.GetHistogram().GetDataPoints()) > 0 {
						return true
					}
				}
				return false
			}, hang, 20*time.Millisecond, "%s of %s", name, service)
		}
	}
}

// A collector that is not there delays neither calls nor the end of a process.
func TestACollectorThatIsNotThereIsNoFailure(t *testing.T) {
	t.Parallel()
	nowhere := func(s *server) {
		s.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + freeAddress(t), "OTEL_BSP_SCHEDULE_DELAY=20"}
	}
	w := startWorkerWith(t, nowhere, "w1", "--device", "sim:step=1ms,decode=0s,prefill=0s", "--load", stories)
	s := startSchedulerWith(t, nowhere, []*server{w})
	s.untilServed(t, stories, 1)
	require.NoError(t, generateTokens(within(t), s, stories, 10))
	for _, of := range []*server{s, w} {
		of.terminate()
		require.Zero(t, of.exit(t), of.name)
	}
}

func TestAVariableThatCannotBeEndsTheStart(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{schedulerBinary, "--workers", "127.0.0.1:1"}, {workerBinary, "--models", modelsDir, "--device", "sim"},
		{clientBinary, "models", "--target", "127.0.0.1:1"},
	} {
		p := launchWith(t, []string{"OTEL_TRACES_EXPORTER=zipkin"}, args[0], args[1:]...)
		require.Equal(t, 2, p.exit(t), p.name)
		require.Contains(t, p.log.String(), `OTEL_TRACES_EXPORTER is "zipkin"`)
	}
}

// With --load-reports a scheduler reports its own load to its callers, instead of its workers'
// reports.
func TestSchedulerReportsLoadIfConfigured(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", "--device", "sim:step=1ms,decode=0s,prefill=0s", "--load", stories)
	for _, flags := range [][]string{nil, {"--load-reports"}} {
		s := startScheduler(t, []*server{w}, flags...)
		s.untilServed(t, stories, 1)
		stream, err := s.infer.Generate(within(t), ask(stories, 5))
		require.NoError(t, err)
		var in *pb.GenerateResponse
		for err == nil {
			in, err = stream.Recv()
		}
		require.ErrorIs(t, err, io.EOF, "%v", in)
		require.Len(t, stream.Trailer().Get("endpoint-load-metrics-bin"), len(flags), "with flags %v", flags)
	}
}
