package relay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// unprocessed drops spans when they end, so that the benchmark measures the cost of making them.
type unprocessed struct{}

func (unprocessed) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (unprocessed) OnEnd(sdktrace.ReadOnlySpan)                     {}
func (unprocessed) Shutdown(context.Context) error                  { return nil }
func (unprocessed) ForceFlush(context.Context) error                { return nil }

func provider(sampler sdktrace.Sampler) *sdktrace.TracerProvider {
	return sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithSpanProcessor(unprocessed{}))
}

// BenchmarkTracing relays streams of 1 and of 1000 tokens between a client and a worker in the same
// process. It reports the allocations and the processor time of a token, of client, scheduler and
// worker together: without spans, with spans that are sampled out, with recorded spans, and with
// the spans of gRPC's stats handler. The difference between these is the cost of tracing.
func BenchmarkTracing(b *testing.B) {
	handler := func(c *rpc.ServerConfig) {
		c.Options = append(c.Options, grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(provider(sdktrace.AlwaysSample())), otelgrpc.WithMeterProvider(noop.NewMeterProvider()))))
	}
	tracer := func(s sdktrace.Sampler) func(*rpc.ServerConfig) {
		return func(c *rpc.ServerConfig) { c.Tracer = provider(s).Tracer(rpc.TraceScope) }
	}
	for _, way := range []struct {
		name   string
		change func(*rpc.ServerConfig)
	}{
		{"off", func(*rpc.ServerConfig) {}}, {"sampled out", tracer(sdktrace.NeverSample())}, {"recorded", tracer(sdktrace.AlwaysSample())},
		{"stats handler", handler},
	} {
		for _, tokens := range []int32{1, 1000} {
			b.Run(fmt.Sprintf("%s/%d", way.name, tokens), func(b *testing.B) {
				r := newRig(b, relay.Options{}, map[string]workertest.Answer{"w1": workertest.Whole("w1")}, way.change)
				in := ask(tokens)
				before, cpu := allocations(), processorTime()
				for b.Loop() {
					stream, err := r.inference.Generate(b.Context(), in)
					if err == nil {
						err = drained(stream)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				each := float64(b.N) * float64(tokens)
				b.ReportMetric(float64(allocations()-before)/each, "allocs/token")
				b.ReportMetric(float64(processorTime()-cpu)/each, "cpu-ns/token")
			})
		}
	}
}

// drained reads a stream to its end.
func drained(stream grpc.ServerStreamingClient[pb.GenerateResponse]) error {
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// processorTime returns the user and system time of this process.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // never fails for a process itself
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// allocations returns how many allocations this process has made.
func allocations() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
