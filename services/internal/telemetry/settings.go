package telemetry

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Settings are the telemetry settings of the environment. The zero value exports nothing.
type Settings struct {
	// Traces and Metrics report whether each is exported.
	Traces, Metrics bool

	err             error    // see Check
	tracesByGRPC    bool     // else by HTTP
	metricsByGRPC   bool     // else by HTTP
	otherPropagator []string // configured propagators that are not supported
}

// Names of variables and of their values.
const (
	envDisabled        = "OTEL_SDK_DISABLED"
	envTraces          = "OTEL_TRACES_EXPORTER"
	envMetrics         = "OTEL_METRICS_EXPORTER"
	envEndpoint        = "OTEL_EXPORTER_OTLP_ENDPOINT"
	envTracesEndpoint  = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	envMetricsEndpoint = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
	envProtocol        = "OTEL_EXPORTER_OTLP_PROTOCOL"
	envTracesProtocol  = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	envMetricsProtocol = "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"
	envSampler         = "OTEL_TRACES_SAMPLER"
	envSamplerArg      = "OTEL_TRACES_SAMPLER_ARG"
	envPropagators     = "OTEL_PROPAGATORS"

	exporterOTLP, exporterNone = "otlp", "none"
	protocolGRPC, protocolHTTP = "grpc", "http/protobuf"
)

// samplers are the values of OTEL_TRACES_SAMPLER. Those in ratios have a ratio in
// OTEL_TRACES_SAMPLER_ARG.
var (
	ratios   = []string{"traceidratio", "parentbased_traceidratio"}
	samplers = append([]string{"always_on", "always_off", "parentbased_always_on", "parentbased_always_off"}, ratios...)
)

// FromEnvironment reads the environment. A signal is exported if its exporter is otlp, or if an
// endpoint is set and the exporter is not none.
func FromEnvironment(getenv func(string) string) Settings {
	read := func(name string) string { return strings.TrimSpace(getenv(name)) }
	var s Settings
	if strings.EqualFold(read(envDisabled), "true") {
		return s
	}
	e := reader{read: read}
	s.Traces, s.tracesByGRPC = e.signal(envTraces, envTracesEndpoint, envTracesProtocol)
	s.Metrics, s.metricsByGRPC = e.signal(envMetrics, envMetricsEndpoint, envMetricsProtocol)
	if s.Traces {
		e.sampler()
		s.otherPropagator = e.propagators()
	}
	s.err = errors.Join(e.wrong...)
	return s
}

// Check returns every variable that has an unsupported value.
func (s Settings) Check() error { return s.err }

// reader reads variables and collects errors.
type reader struct {
	read  func(name string) string
	wrong []error
}

func (e *reader) refuse(name, value, want string) {
	e.wrong = append(e.wrong, fmt.Errorf("%s is %.64q: %s", name, value, want))
}

// signal reports whether a signal is exported, and whether by gRPC.
func (e *reader) signal(exporter, endpoint, protocol string) (sent, byGRPC bool) {
	switch v := strings.ToLower(e.read(exporter)); {
	case v == exporterNone, v == "" && e.read(envEndpoint) == "" && e.read(endpoint) == "":
		return false, false
	case v != "" && v != exporterOTLP:
		want := "this program supports otlp and none"
		if exporter == envMetrics && v == "prometheus" {
			want = "metrics for Prometheus are served at --metrics-listen; give otlp or none"
		}
		e.refuse(exporter, v, want)
		return false, false
	}
	name := protocol
	if e.read(name) == "" {
		name = envProtocol
	}
	switch v := e.read(name); v {
	case protocolGRPC:
		return true, true
	case protocolHTTP, "":
	default:
		e.refuse(name, v, "want grpc or http/protobuf")
	}
	return true, false
}

// sampler checks values that the library would silently replace by defaults.
func (e *reader) sampler() {
	v := strings.ToLower(e.read(envSampler))
	switch arg := e.read(envSamplerArg); {
	case v == "":
	case !slices.Contains(samplers, v):
		e.refuse(envSampler, v, "want one of "+strings.Join(samplers, ", "))
	case slices.Contains(ratios, v) && arg != "":
		if share, err := strconv.ParseFloat(arg, 64); err != nil || !(share >= 0 && share <= 1) {
			e.refuse(envSamplerArg, arg, "want the share of traces to record, in [0, 1]")
		}
	}
}

// propagators returns the configured propagators that are not supported. They are not an error,
// because whole clusters share one list.
func (e *reader) propagators() (other []string) {
	for name := range strings.SplitSeq(e.read(envPropagators), ",") {
		switch name = strings.TrimSpace(name); name {
		case "", "tracecontext", "baggage", exporterNone:
		default:
			other = append(other, name)
		}
	}
	return other
}
