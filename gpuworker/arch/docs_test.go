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
		if cells[4] == "-" {
			// Not compared yet: such a row claims nothing.
			require.Equal(t, []string{"-", "-", "-", "refuse it: a mixture of experts |\n"}, cells[2:], line)
			continue
		}
		// The bound of gpu-check's stage families, which compares every architecture with transformers.
		if strings.Trim(name, "`") == "gemma-embedding" {
			require.Equal(t, "not yet", cells[4], "the stage has it; its figure belongs here once it has run")
			continue
		}
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
