package telemetry_test

import (
	"testing"

	"go.opentelemetry.io/otel/semconv/v1.41.0/genaiconv"

	"github.com/millrace/millrace/internal/doctable"
)

// convention is a metric that the conventions define.
type convention interface {
	Name() string
	Unit() string
	Description() string
}

func TestDocumentListsExportedMetrics(t *testing.T) {
	var rows [][]string
	for _, m := range []convention{
		genaiconv.ClientTokenUsage{}, genaiconv.ServerRequestDuration{}, genaiconv.ServerTimePerOutputToken{}, genaiconv.ServerTimeToFirstToken{},
	} {
		rows = append(rows, []string{"`" + m.Name() + "`", m.Unit(), m.Description()})
	}
	doctable.Table{Page: "observability.md", Heading: "Metrics by OTLP", Columns: []string{"metric", "unit", "meaning"}}.Compare(t, rows)
}
