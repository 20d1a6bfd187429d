package metrics

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
)

func TestDocumentHasEveryMetric(t *testing.T) {
	monitortest.Document(t, "Metrics of a worker", All())
}

func TestDocumentHasEveryAlias(t *testing.T) {
	monitortest.Document(t, "Names of vLLM", VLLM())
}

func TestNamesFollowTheRules(t *testing.T) {
	monitortest.Names(t, "millrace_", All())
	for _, rows := range [][]monitor.Metric{monitor.Metrics(modelReadings), monitor.Metrics(stateReadings), monitor.Metrics(workerReadings), monitor.Metrics(countReadings), monitor.Metrics(vectorReadings)} {
		for i, a := range rows[1:] {
			if a.Name == rows[i].Name {
				require.Equal(t, rows[i], a, "series of one metric have one help text")
			}
		}
	}
}
