package arch

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestModelsPageListsWhatLoads(t *testing.T) {
	// docs/models.md says which architectures and types of weights load: all of them, and in the
	// order of this package.
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "models.md"))
	require.NoError(t, err)
	row := func(begin string) string {
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "| "+begin) {
				return line
			}
		}
		t.Fatalf("docs/models.md has no row %q", begin)
		return ""
	}
	var names []string
	_, table, _ := strings.Cut(string(text), "### Architectures\n")
	table, _, _ = strings.Cut(table, "\n###")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		name, ok := strings.CutPrefix(cells[0], "| `")
		if !ok || strings.HasPrefix(name, "general.") {
			continue
		}
		names = append(names, strings.TrimSuffix(name, "`"))
		require.Len(t, cells, 6, line)
		// The bound of gpu-check's stage families, which compares every architecture with transformers.
		difference, err := strconv.ParseFloat(cells[4], 64)
		require.NoError(t, err, "the column transformers of %s", name)
		require.Positive(t, difference)
		require.Less(t, difference, 1e-4)
	}
	require.Equal(t, Architectures(), names)
	var types []string
	for _, weight := range weightTypes {
		types = append(types, weight.String())
	}
	require.Contains(t, row("weight types"), "| "+strings.Join(types, ", ")+" |")
}
