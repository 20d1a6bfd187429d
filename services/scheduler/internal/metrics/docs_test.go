package metrics

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
)

func TestTheDocumentNamesEveryMeasure(t *testing.T) {
	monitortest.Document(t, "Measures of a scheduler", All())
}

func TestNamesFollowTheRules(t *testing.T) {
	monitortest.Names(t, "millrace_scheduler_", All())
	for _, rows := range [][]monitor.About{monitor.Abouts(ofQueue), monitor.Abouts(ofWhole), monitor.Abouts(ofMember)} {
		for i, a := range rows[1:] {
			if a.Name == rows[i].Name {
				require.Equal(t, rows[i], a, "series of one measure say the same of it")
			}
		}
	}
}
