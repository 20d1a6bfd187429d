package helm

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"
)

// read is a file of the repository.
func read(t *testing.T, parts ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(append([]string{root}, parts...)...))
	require.NoError(t, err)
	return string(raw)
}

// section is what stands under a heading of a page, up to the next one.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(page, "\n## "+heading+"\n")
	require.True(t, found, heading)
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

// rows are the names in backquotes that the rows of tables begin with, with the text of each.
func rows(text string) map[string]string {
	all := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(?:--)?([^` ]+)[^|]*\\|(.*)$").FindAllStringSubmatch(text, -1) {
		all[row[1]] = row[2]
	}
	return all
}

// The tables of docs/flags.md are kept by tests of the programs.
func TestEveryFlagOfAPodIsOneOfItsProgram(t *testing.T) {
	page := read(t, "docs", "flags.md")
	each(t, func(all variant) {
		t := all.T
		for name, pod := range all.pods() {
			known := rows(section(t, page, "Flags of `"+name+"`"))
			require.Greater(t, len(known), 20)
			require.Equal(t, []string{name}, pod.Spec.Containers[0].Command)
			for flag, values := range flagsOf(pod) {
				require.Contains(t, known, flag, name)
				if flag != "load" {
					require.Len(t, values, 1, "%s --%s is given twice", name, flag)
				}
			}
		}
	})
}

// expressions are what autoscalers ask Prometheus.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	for _, o := range install(t, variants(t)["keda"]).scaled {
		require.Equal(t, "StatefulSet", o.Spec.ScaleTargetRef.Kind)
		require.Equal(t, install(t, nil).worker.Name, o.Spec.ScaleTargetRef.Name)
		require.Len(t, o.Spec.Triggers, 2)
		for _, trigger := range o.Spec.Triggers {
			require.Equal(t, "Value", trigger.MetricType, "both are of the whole fleet")
			require.Contains(t, trigger.Metadata["query"], `namespace="`+namespace+`",service="`+release+`-`)
			all = append(all, trigger.Metadata["query"])
		}
	}
	for _, rule := range adapterRules(t) {
		all = append(all, rule.SeriesQuery, rule.MetricsQuery)
	}
	return all
}

type adapterRule struct {
	SeriesQuery, MetricsQuery string
	Name                      struct{ As string }
	Resources                 struct {
		Overrides map[string]struct{ Resource string }
	}
}

func adapterRules(t *testing.T) []adapterRule {
	t.Helper()
	var file struct {
		Rules struct{ External []adapterRule }
	}
	require.NoError(t, yaml.UnmarshalStrict([]byte(read(t, "deploy", "helm", "prometheus-adapter.yaml")), &file))
	require.Len(t, file.Rules.External, 2)
	return file.Rules.External
}

// The tables of docs/observability.md are kept by tests of the programs, and those read a page of metrics.
func TestEveryMeasureThatAnAutoscalerAsksForExists(t *testing.T) {
	page := read(t, "docs", "observability.md")
	ofScheduler, ofWorker := rows(section(t, page, "Metrics of a scheduler")), rows(section(t, page, "Metrics of a worker"))
	asked := map[string]bool{}
	for _, expr := range expressions(t) {
		for _, name := range regexp.MustCompile(`millrace_[a-z_]+`).FindAllString(expr, -1) {
			asked[name] = true
			if strings.HasPrefix(name, "millrace_scheduler_") {
				require.Contains(t, ofScheduler, name, expr)
				require.NotContains(t, expr, release+"-workers", "only schedulers have it")
				continue
			}
			require.Contains(t, ofWorker, name, expr)
			require.NotContains(t, expr, release+"-schedulers", "only workers have it")
		}
		if strings.Contains(expr, `state="held"`) {
			require.Contains(t, ofWorker["millrace_kv_blocks"], "held:")
		}
	}
	require.Len(t, asked, 2)
}

func TestTheAutoscalerAsksForWhatTheAdapterGives(t *testing.T) {
	all := install(t, variants(t)["adapter"])
	require.Len(t, all.scalers, 1)
	var asked, given []string
	for _, m := range all.scalers[0].Spec.Metrics {
		asked = append(asked, m.External.Metric.Name)
		service := m.External.Metric.Selector.MatchLabels["service"]
		require.True(t, slices.ContainsFunc(all.monitors, func(o *monitoring.ServiceMonitor) bool { return o.Name+"s" == service }), service)
	}
	for _, rule := range adapterRules(t) {
		given = append(given, rule.Name.As)
		require.Equal(t, "namespace", rule.Resources.Overrides["namespace"].Resource)
	}
	require.Equal(t, given, asked)
	require.Equal(t, all.worker.Name, all.scalers[0].Spec.ScaleTargetRef.Name)
	require.Nil(t, all.worker.Spec.Replicas, "who scales says how many")
}

func TestJobsAreNamedAsTheDashboardKnowsThem(t *testing.T) {
	dashboards := read(t, "deploy", "monitoring", "prometheus.yml")
	for _, m := range install(t, variants(t)["keda"]).monitors {
		relabel := m.Spec.Endpoints[0].RelabelConfigs[0]
		require.Equal(t, "job", relabel.TargetLabel)
		require.Contains(t, dashboards, "job_name: "+*relabel.Replacement+"\n")
	}
}

func TestTheChartIsOfThisRelease(t *testing.T) {
	chart, err := loader.Load(chartDir)
	require.NoError(t, err)
	newest := regexp.MustCompile(`(?m)^## (\S+)$`).FindStringSubmatch(read(t, "CHANGELOG.md"))
	require.Equal(t, newest[1], chart.Metadata.Version)
	require.Equal(t, newest[1], chart.Metadata.AppVersion)
}

func TestTheImageHasTheModelThatIsLoadedByDefault(t *testing.T) {
	flags := flagsOf(install(t, nil).worker.Spec.Template)
	require.Equal(t, []string{"stories"}, flags["load"])
	require.Contains(t, read(t, "deploy", "Dockerfile"), "COPY models/stories.gguf "+flags["models"][0]+"/\n")
}
