package helm

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// The repository's root, and what of it is checked here.
var (
	root     = filepath.Join("..", "..")
	chartDir = filepath.Join(root, "deploy", "helm", "millrace")
	examples = filepath.Join(root, "deploy", "helm", "examples")
)

// Where a test installs the chart.
const (
	release   = "mill"
	namespace = "serving"
)

// variants are the values that every check runs for: the chart's own, and each example's.
func variants(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, 7)
	all := map[string]map[string]any{"default": {}}
	for _, file := range files {
		values, err := chartutil.ReadValuesFile(file)
		require.NoError(t, err, file)
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = values
	}
	return all
}

// variant is the test of one variant, and its installed objects.
type variant struct {
	*testing.T
	fleet
}

// each runs a check for every variant.
func each(t *testing.T, check func(variant)) {
	t.Helper()
	for name, values := range variants(t) {
		t.Run(name, func(t *testing.T) { check(variant{t, install(t, values)}) })
	}
}

// render is what Helm would install, by template. It fails as an installation would.
func render(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	chart, err := loader.Load(chartDir)
	require.NoError(t, err)
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{
		Name: release, Namespace: namespace, Revision: 1, IsInstall: true,
	}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, all)
}

// documents are what render gives, but for the notes, divided.
func documents(t *testing.T, values map[string]any) (all [][]byte) {
	t.Helper()
	templates, err := render(t, values)
	require.NoError(t, err)
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		for reader := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(templates[name]))); ; {
			raw, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, name)
			if raw = bytes.TrimSpace(raw); len(raw) > 0 {
				all = append(all, raw)
			}
		}
	}
	return all
}
