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

	"github.com/millrace/millrace/services/internal/flood"
	"github.com/millrace/millrace/services/internal/rpc"
)

// closeTimeout is how long a program that ends waits for a collector to take what is left.
const closeTimeout = 3 * time.Second

// Identity is who sends.
type Identity struct {
	// Program is the service's name, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES name another; Version its release.
	Program, Version string
	// Instance tells those of one name apart; empty: it is not told.
	Instance string
}

// Telemetry is what a process sends. The zero value is nothing.
type Telemetry struct {
	// Provider makes tracers; nil: no traces are sent.
	Provider trace.TracerProvider
	// Generations measures generations; nil, on which Record does nothing: no measures are sent.
	Generations *Generations

	logger hclog.Logger
	close  []func(context.Context) error
}

// Open makes what the settings want, once in a process: what the libraries complain of goes to the logger. A collector that is not there
// is no error; what cannot be sent is dropped, and the log says so. Close it.
func Open(ctx context.Context, s Settings, is Identity, logger hclog.Logger) (*Telemetry, error) {
	t := &Telemetry{logger: logger.Named("telemetry")}
	if !s.Traces && !s.Metrics {
		return t, nil
	}
	t.complain()
	if len(s.otherPropagator) > 0 {
		t.logger.Warn("traces are told to others by W3C trace context alone", "variable", envPropagators,
			"ignored", strings.Join(s.otherPropagator, ","))
	}
	of, err := resourceOf(ctx, is)
	if err != nil {
		return nil, err
	}
	if s.Traces {
		exporter, err := spanExporter(ctx, s.tracesByGRPC)
		if err != nil {
			return nil, fmt.Errorf("traces: %w", err)
		}
		p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(of), sdktrace.WithRawSpanLimits(limits()))
		t.Provider, t.close = p, append(t.close, p.Shutdown)
	}
	if s.Metrics {
		exporter, err := metricExporter(ctx, s.metricsByGRPC)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("measures: %w", err), t.Close())
		}
		p := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)), sdkmetric.WithResource(of))
		t.close = append(t.close, p.Shutdown)
		if t.Generations, err = NewGenerations(p.Meter(rpc.TraceScope)); err != nil {
			return nil, errors.Join(fmt.Errorf("measures: %w", err), t.Close())
		}
	}
	t.logger.Info("telemetry is sent", "traces", s.Traces, "measures", s.Metrics)
	return t, nil
}

// Tracer is for rpc.ServerConfig.
func (t *Telemetry) Tracer() trace.Tracer {
	if t.Provider == nil {
		return nil
	}
	return t.Provider.Tracer(rpc.TraceScope)
}

// Close sends what is left, for closeTimeout at most. Nothing is recorded any more.
func (t *Telemetry) Close() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, c := range t.close {
		err = errors.Join(err, c(ctx))
	}
	t.close = nil
	return err
}

// End is Close for a program that ends: that the rest could not be sent is told and is no failure.
func (t *Telemetry) End() {
	if err := t.Close(); err != nil {
		t.logger.Warn("the last telemetry was not delivered", "error", err)
	}
}

// complain sends what the libraries complain of to the log.
func (t *Telemetry) complain() {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.logger.Warn("telemetry not delivered", "error", err) }))
	otel.SetLogger(funcr.New(func(_, text string) { t.logger.Warn("telemetry library complains", "text", text) }, funcr.Options{Verbosity: 1}))
}

// resourceOf is who sends, as the environment completes or corrects it.
func resourceOf(ctx context.Context, is Identity) (*resource.Resource, error) {
	own := resource.WithAttributes(semconv.ServiceName(is.Program), semconv.ServiceVersion(is.Version))
	instance := resource.WithAttributes()
	if is.Instance != "" {
		instance = resource.WithAttributes(semconv.ServiceInstanceID(is.Instance))
	}
	r, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), own, instance, resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("what telemetry says of this program: %w", err)
	}
	return r, nil
}

// limits are the libraries', but for texts, which may come from a caller: OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT bounds them, else
// flood.MaxText.
func limits() sdktrace.SpanLimits {
	l := sdktrace.NewSpanLimits() // which reads the environment
	if l.AttributeValueLengthLimit < 0 {
		l.AttributeValueLengthLimit = flood.MaxText
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
