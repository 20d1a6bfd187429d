package telemetry_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/telemetry"
)

// environment returns a getenv that has only these variables.
func environment(set map[string]string) func(string) string {
	return func(name string) string { return set[name] }
}

func TestFromEnvironmentSelectsSignals(t *testing.T) {
	for name, tc := range map[string]struct {
		set             map[string]string
		traces, metrics bool
	}{
		"nothing where nothing is set":          {},
		"nothing for a name alone":              {set: map[string]string{"OTEL_SERVICE_NAME": "mine", "OTEL_TRACES_SAMPLER": "always_on"}},
		"both to an endpoint":                   {set: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, traces: true, metrics: true},
		"traces alone to their endpoint":        {set: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, traces: true},
		"metrics alone to their endpoint":       {set: map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318"}, metrics: true},
		"traces to the default endpoint":        {set: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, traces: true},
		"what is not excepted":                  {set: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_METRICS_EXPORTER": "none"}, traces: true},
		"nothing where the library is disabled": {set: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}},
		"nothing wrong that nobody uses":        {set: map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "zipkin"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := telemetry.FromEnvironment(environment(tc.set))
			require.NoError(t, s.Check())
			require.Equal(t, tc.traces, s.Traces, "traces")
			require.Equal(t, tc.metrics, s.Metrics, "metrics")
		})
	}
}

func TestCheckNamesUnsupportedValues(t *testing.T) {
	for name, tc := range map[string]struct {
		set  map[string]string
		says []string
	}{
		"an exporter of traces": {map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, []string{"OTEL_TRACES_EXPORTER", "zipkin", "otlp"}},
		"a page for Prometheus": {map[string]string{"OTEL_METRICS_EXPORTER": "prometheus"}, []string{"OTEL_METRICS_EXPORTER", "--metrics-listen"}},
		"a protocol": {map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
			[]string{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf"}},
		"a protocol of one": {map[string]string{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "udp"},
			[]string{"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "udp"}},
		"a sampler": {map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "sometimes"},
			[]string{"OTEL_TRACES_SAMPLER", "sometimes", "parentbased_traceidratio"}},
		"a share above all": {map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1.5"},
			[]string{"OTEL_TRACES_SAMPLER_ARG", "1.5", "[0, 1]"}},
		"a share that is none": {map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "NaN"},
			[]string{"OTEL_TRACES_SAMPLER_ARG", "NaN"}},
		"several at once": {map[string]string{"OTEL_TRACES_EXPORTER": "a", "OTEL_METRICS_EXPORTER": "b"},
			[]string{"OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := telemetry.FromEnvironment(environment(tc.set)).Check()
			for _, words := range tc.says {
				require.ErrorContains(t, err, words)
			}
		})
	}
}
