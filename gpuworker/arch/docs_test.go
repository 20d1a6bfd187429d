package arch

import (
	"os"
	"path/filepath"
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
		if name, ok := strings.CutPrefix(line, "| `"); ok && !strings.HasPrefix(name, "general.") {
			name, _, _ = strings.Cut(name, "`")
			names = append(names, name)
		}
	}
	require.Equal(t, Architectures(), names)
	var types []string
	for _, weight := range weightTypes {
		types = append(types, weight.String())
	}
	require.Contains(t, row("weight types"), "| "+strings.Join(types, ", ")+" |")
}
