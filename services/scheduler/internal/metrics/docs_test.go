package metrics

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
)

func TestDocumentHasEveryMetric(t *testing.T) {
	monitortest.Document(t, "Metrics of a scheduler", All())
}

func TestNamesFollowTheRules(t *testing.T) {
	monitortest.Names(t, "millrace_scheduler_", All())
	for _, rows := range [][]monitor.Metric{monitor.Metrics(queueReadings), monitor.Metrics(fleetReadings), monitor.Metrics(workerReadings)} {
		for i, a := range rows[1:] {
			if a.Name == rows[i].Name {
				require.Equal(t, rows[i], a, "series of one metric have the same help text")
			}
		}
	}
}
