package telemetry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/services/internal/ratelog"
	"github.com/millrace/millrace/services/internal/rpc"
)

// closeTimeout bounds the last export of a program that ends.
const closeTimeout = 3 * time.Second

// Identity identifies the program.
type Identity struct {
	// Program is the service name unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES set another.
	// Version is its release.
	Program, Version string
	// Instance distinguishes programs of one name; "" omits it.
	Instance string
}

// Telemetry exports a process's telemetry. The zero value exports nothing.
type Telemetry struct {
	// Provider makes tracers; nil: no traces are exported.
	Provider trace.TracerProvider
	// Generations records generations; nil, on which Record does nothing: no metrics are exported.
	Generations *Generations

	logger hclog.Logger
	close  []func(context.Context) error
}

// Open makes the exporters that the settings select. Call it once in a process, because it
// redirects the libraries' logs to logger. A missing collector is not an error: what cannot be
// exported is dropped and logged. The caller must call Close.
func Open(ctx context.Context, s Settings, id Identity, logger hclog.Logger) (*Telemetry, error) {
	t := &Telemetry{logger: logger.Named("telemetry")}
	if !s.Traces && !s.Metrics {
		return t, nil
	}
	t.forwardLibraryLogs()
	if len(s.otherPropagator) > 0 {
		t.logger.Warn("trace context is sent in the W3C format only", "variable", envPropagators,
			"ignored", strings.Join(s.otherPropagator, ","))
	}
	res, err := newResource(ctx, id)
	if err != nil {
		return nil, err
	}
	if s.Traces {
		exporter, err := spanExporter(ctx, s.tracesByGRPC)
		if err != nil {
			return nil, fmt.Errorf("traces: %w", err)
		}
		p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res), sdktrace.WithRawSpanLimits(limits()))
		t.Provider, t.close = p, append(t.close, p.Shutdown)
	}
	if s.Metrics {
		exporter, err := metricExporter(ctx, s.metricsByGRPC)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("metrics: %w", err), t.Close())
		}
		p := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)), sdkmetric.WithResource(res))
		t.close = append(t.close, p.Shutdown)
		if t.Generations, err = NewGenerations(p.Meter(rpc.TraceScope)); err != nil {
			return nil, errors.Join(fmt.Errorf("metrics: %w", err), t.Close())
		}
	}
	t.logger.Info("telemetry is sent", "traces", s.Traces, "metrics", s.Metrics)
	return t, nil
}

// Tracer returns the tracer for rpc.ServerConfig, or nil.
func (t *Telemetry) Tracer() trace.Tracer {
	if t.Provider == nil {
		return nil
	}
	return t.Provider.Tracer(rpc.TraceScope)
}

// Close exports the remaining records, within closeTimeout. Nothing is recorded after it.
func (t *Telemetry) Close() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, c := range t.close {
		err = errors.Join(err, c(ctx))
	}
	t.close = nil
	return err
}

// End is Close for a program that ends: an error is logged only.
func (t *Telemetry) End() {
	if err := t.Close(); err != nil {
		t.logger.Warn("the last telemetry was not delivered", "error", err)
	}
}

// forwardLibraryLogs sends the libraries' errors to the log.
func (t *Telemetry) forwardLibraryLogs() {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.logger.Warn("telemetry not delivered", "error", err) }))
	otel.SetLogger(funcr.New(func(_, text string) { t.logger.Warn("telemetry library complains", "text", text) }, funcr.Options{Verbosity: 1}))
}

// newResource returns the attributes of this program, which the environment may extend or replace.
func newResource(ctx context.Context, id Identity) (*resource.Resource, error) {
	service := resource.WithAttributes(semconv.ServiceName(id.Program), semconv.ServiceVersion(id.Version))
	instance := resource.WithAttributes()
	if id.Instance != "" {
		instance = resource.WithAttributes(semconv.ServiceInstanceID(id.Instance))
	}
	r, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), service, instance, resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe this program for telemetry: %w", err)
	}
	return r, nil
}

// limits returns the library's limits, except that texts, which may come from callers, are bounded
// by ratelog.MaxText unless OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT sets another bound.
func limits() sdktrace.SpanLimits {
	l := sdktrace.NewSpanLimits() // reads the environment
	if l.AttributeValueLengthLimit < 0 {
		l.AttributeValueLengthLimit = ratelog.MaxText
	}
	return l
}

func spanExporter(ctx context.Context, byGRPC bool) (sdktrace.SpanExporter, error) {
	if byGRPC {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

func metricExporter(ctx context.Context, byGRPC bool) (sdkmetric.Exporter, error) {
	if byGRPC {
		return otlpmetricgrpc.New(ctx)
	}
	return otlpmetrichttp.New(ctx)
}
