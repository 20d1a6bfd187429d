package monitortest

import (
	"fmt"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prometheus "github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// Series returns the values of a page by name and labels, "NAME LABEL=VALUE ...". A histogram has
// its count and its sum.
func Series(t *testing.T, body string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(prometheus.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	require.NoError(t, err)
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			id := name
			for _, l := range m.GetLabel() {
				id += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
			}
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				out[id+" count"], out[id+" sum"] = float64(m.GetHistogram().GetSampleCount()), m.GetHistogram().GetSampleSum()
			case dto.MetricType_COUNTER:
				out[id] = m.GetCounter().GetValue()
			default:
				out[id] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

// Sums returns the values of a page by metric, summed over series. A histogram has its
// observations.
func Sums(t *testing.T, body string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for id, value := range Series(t, body) {
		if name, _, _ := strings.Cut(id, " "); !strings.HasSuffix(id, " sum") {
			out[name] += value
		}
	}
	return out
}
