package metrics

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
)

func TestTheDocumentNamesEveryMeasure(t *testing.T) {
	monitortest.Document(t, "Measures of a worker", All())
}

func TestTheDocumentNamesEveryAlias(t *testing.T) {
	monitortest.Document(t, "Names of vLLM", VLLM())
}

func TestNamesFollowTheRules(t *testing.T) {
	monitortest.Names(t, "millrace_", All())
	for _, rows := range [][]monitor.About{monitor.Abouts(ofModel), monitor.Abouts(ofModels), monitor.Abouts(ofWorker), monitor.Abouts(ofCounts), monitor.Abouts(ofVectors)} {
		for i, a := range rows[1:] {
			if a.Name == rows[i].Name {
				require.Equal(t, rows[i], a, "series of one measure say the same of it")
			}
		}
	}
}
