package arch

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/repotest"
)

// readmeWidth is where lines of the README end.
const readmeWidth = 140

// readmeParagraph returns the README's list of families, wrapped.
func readmeParagraph() string {
	var models []string
	for _, name := range Architectures() {
		models = append(models, families[name].models)
	}
	text, column := "", 0
	for word := range strings.FieldsSeq("Families: " + strings.Join(models, "; ") + ".") {
		switch {
		case text == "":
		case column+1+len(word) > readmeWidth:
			text, column = text+"\n", 0
		default:
			text, column = text+" ", column+1
		}
		text, column = text+word, column+len(word)
	}
	return text
}

func TestReadmeListsEveryFamily(t *testing.T) {
	// The README's paragraph that begins with "Families:" is the families' table.
	path := repotest.Path("README.md")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, behind, found := strings.Cut(string(text), "\n\nFamilies: ")
	require.True(t, found, "the README has no paragraph \"Families:\"")
	list, behind, found := strings.Cut(behind, "\n\n")
	require.True(t, found)
	if *repotest.Update {
		require.NoError(t, os.WriteFile(path, []byte(before+"\n\n"+readmeParagraph()+"\n\n"+behind), 0o600))
		return
	}
	require.Equal(t, readmeParagraph(), "Families: "+list, "go test ./gpuworker/arch -run TestReadmeListsEveryFamily -update writes it")
}

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
	columns := []struct {
		name  string
		bound float64
	}{
		{"reference", 6e-5}, {"CPU engine", 6e-5}, // logprobBound of TestFamiliesMatchLlamaCpp
		{"transformers", 1e-4}, // of gpu-check's stage families
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
		for i, column := range columns {
			if column.name == "transformers" && cells[2+i] == "-" {
				// Not compared yet, which only what GPU workers refuse may be.
				require.True(t, strings.HasPrefix(cells[5], "refuse it: "), line)
				continue
			}
			difference, err := strconv.ParseFloat(cells[2+i], 64)
			require.NoError(t, err, "the column %s of %s", column.name, name)
			require.Positive(t, difference)
			require.Less(t, difference, column.bound)
		}
	}
	require.Equal(t, Architectures(), names)
	var types []string
	for _, weight := range weightTypes {
		types = append(types, weight.String())
	}
	require.Contains(t, row("weight types"), "| "+strings.Join(types, ", ")+" |")
}
