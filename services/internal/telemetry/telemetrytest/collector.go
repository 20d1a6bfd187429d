package telemetrytest

import (
	"context"
	"encoding/hex"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricpb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Collector takes spans and measures, and keeps them. Safe for concurrent use.
type Collector struct {
	address string

	mu      sync.Mutex
	spans   []Span                        // guarded by mu
	metrics map[string][]*metricpb.Metric // guarded by mu; by service, as they came
}

// Span is a span that came, and who sent it.
type Span struct {
	*tracepb.Span
	// Service is the service.name of its sender.
	Service string
}

// Start starts a collector on loopback. It ends with the test.
func Start(t testing.TB) *Collector {
	t.Helper()
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &Collector{address: lis.Addr().String(), metrics: map[string][]*metricpb.Metric{}}
	s := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(s, traces{c: c})
	metricspb.RegisterMetricsServiceServer(s, measures{c: c})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(lis) }() // ends with Stop
	t.Cleanup(func() { s.Stop(); <-done })
	return c
}

// Environment is what makes a program send to it, at once rather than every few seconds.
func (c *Collector) Environment() []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + c.address, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
		"OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_METRIC_EXPORT_INTERVAL=100",
	}
}

// Spans are those that have come.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Metrics are the measures that a service has sent, each as often as it came, the newest last.
func (c *Collector) Metrics(service string) []*metricpb.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.metrics[service])
}

// TraceID is the id of its trace, in hex as all of these.
func (s Span) TraceID() string { return hex.EncodeToString(s.GetTraceId()) }

// ParentID is the id of the span that it is within; empty: it is a root.
func (s Span) ParentID() string { return hex.EncodeToString(s.GetParentSpanId()) }

// ID is its own.
func (s Span) ID() string { return hex.EncodeToString(s.GetSpanId()) }

// Attribute is the value of an attribute; nil: it has none of that name.
func (s Span) Attribute(key string) *commonpb.AnyValue {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue()
		}
	}
	return nil
}

// traces and measures are a Collector's services, whose methods have one name.
type (
	traces struct {
		collectorpb.UnimplementedTraceServiceServer
		c *Collector
	}
	measures struct {
		metricspb.UnimplementedMetricsServiceServer
		c *Collector
	}
)

func (s traces) Export(_ context.Context, in *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for _, r := range in.GetResourceSpans() {
		name := service(r.GetResource().GetAttributes())
		for _, scope := range r.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s.c.spans = append(s.c.spans, Span{Span: span, Service: name})
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (s measures) Export(_ context.Context, in *metricspb.ExportMetricsServiceRequest) (*metricspb.ExportMetricsServiceResponse, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for _, r := range in.GetResourceMetrics() {
		name := service(r.GetResource().GetAttributes())
		for _, scope := range r.GetScopeMetrics() {
			s.c.metrics[name] = append(s.c.metrics[name], scope.GetMetrics()...)
		}
	}
	return &metricspb.ExportMetricsServiceResponse{}, nil
}

// service is the value of service.name.
func service(of []*commonpb.KeyValue) string {
	for _, a := range of {
		if a.GetKey() == "service.name" {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}
