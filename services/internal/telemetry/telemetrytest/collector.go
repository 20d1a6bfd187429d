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

// Collector receives and keeps spans and metrics. It is safe for concurrent use.
type Collector struct {
	address string

	mu      sync.Mutex
	spans   []Span                        // guarded by mu
	metrics map[string][]*metricpb.Metric // guarded by mu; by service, in order of arrival
}

// Span is a received span with its sender.
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

// Environment returns variables that make a program export to it at once rather than every few
// seconds.
func (c *Collector) Environment() []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + c.address, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
		"OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_METRIC_EXPORT_INTERVAL=100",
	}
}

// Spans returns the received spans.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Metrics returns the metrics that a service has exported, in order of arrival. A metric may occur
// several times.
func (c *Collector) Metrics(service string) []*metricpb.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.metrics[service])
}

// TraceID returns the hexadecimal id of its trace.
func (s Span) TraceID() string { return hex.EncodeToString(s.GetTraceId()) }

// ParentID returns the hexadecimal id of its parent, or "" for a root span.
func (s Span) ParentID() string { return hex.EncodeToString(s.GetParentSpanId()) }

// ID returns its hexadecimal id.
func (s Span) ID() string { return hex.EncodeToString(s.GetSpanId()) }

// Attribute returns the value of an attribute, or nil.
func (s Span) Attribute(key string) *commonpb.AnyValue {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue()
		}
	}
	return nil
}

// traces and measures are the two services of a Collector. Their methods have the same name.
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

// service returns the value of service.name.
func service(of []*commonpb.KeyValue) string {
	for _, a := range of {
		if a.GetKey() == "service.name" {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}
