package telemetry

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Settings are what the environment says of telemetry. The zero value sends nothing.
type Settings struct {
	// Traces and Metrics are whether each is sent.
	Traces, Metrics bool

	wrong           error    // see Check
	tracesByGRPC    bool     // otherwise by HTTP
	metricsByGRPC   bool     // the same
	otherPropagator []string // wanted ways to tell the next process of a trace that are not spoken here
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

// samplers are the values of OTEL_TRACES_SAMPLER; those in ratios take a share in OTEL_TRACES_SAMPLER_ARG.
var (
	ratios   = []string{"traceidratio", "parentbased_traceidratio"}
	samplers = append([]string{"always_on", "always_off", "parentbased_always_on", "parentbased_always_off"}, ratios...)
)

// FromEnvironment reads the environment. Either is sent where its exporter is otlp, or where an endpoint is named and the exporter is not
// none.
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
	s.wrong = errors.Join(e.wrong...)
	return s
}

// Check reports every variable that has a value which it cannot have here.
func (s Settings) Check() error { return s.wrong }

// reader reads variables and collects what is wrong with them.
type reader struct {
	read  func(name string) string
	wrong []error
}

func (e *reader) refuse(name, value, want string) {
	e.wrong = append(e.wrong, fmt.Errorf("%s is %.64q: %s", name, value, want))
}

// signal is whether a signal is sent, and whether by gRPC.
func (e *reader) signal(exporter, endpoint, protocol string) (sent, byGRPC bool) {
	switch v := strings.ToLower(e.read(exporter)); {
	case v == exporterNone, v == "" && e.read(envEndpoint) == "" && e.read(endpoint) == "":
		return false, false
	case v != "" && v != exporterOTLP:
		want := "this program knows otlp and none"
		if exporter == envMetrics && v == "prometheus" {
			want = "measures for Prometheus are served at --metrics-listen; give otlp or none"
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

// sampler checks what the library would replace by a default in silence.
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

// propagators are those wanted that are not spoken here. They are no reason not to start: whole clusters are given the same list.
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
