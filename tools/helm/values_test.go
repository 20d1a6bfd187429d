package helm

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
)

func TestHelmLintFindsNothing(t *testing.T) {
	for name, values := range variants(t) {
		linter := lint.All(chartDir, values, namespace, true)
		for _, m := range linter.Messages {
			require.LessOrEqual(t, m.Severity, support.InfoSev, "%s: %s: %v", name, m.Path, m.Err)
		}
	}
}

func TestContradictingValuesAreRefused(t *testing.T) {
	// Each message names the value and the change that resolves the contradiction.
	for name, c := range map[string]struct{ set, says string }{
		"TLS without the schedulers' secret":  {"tls.enabled=true,tls.worker.secretName=w", "tls.scheduler.secretName: name a Secret"},
		"TLS without the workers' secret":     {"tls.enabled=true,tls.scheduler.secretName=s", "tls.worker.secretName: name a Secret"},
		"a secret of TLS that is off":         {"tls.worker.secretName=w", "tls.enabled: is false"},
		"names of callers nobody vouches for": {"tls.enabled=true,tls.scheduler.secretName=s,tls.worker.secretName=w,tls.scheduler.clientSANs={dns:a}", "clientCertificates=true"},
		"a token in plaintext":                {"auth.workerToken.secretName=t,auth.worker.secretName=k", "need tls.enabled=true"},
		"workers with keys and no token":      {"tls.enabled=true,tls.scheduler.secretName=s,tls.worker.secretName=w,auth.worker.secretName=k", "auth.workerToken.secretName: workers"},
		"a token that nobody asks for":        {"tls.enabled=true,tls.scheduler.secretName=s,tls.worker.secretName=w,auth.workerToken.secretName=t", "nobody asks for the token"},
		"gateways without a secret":           {"tls.enabled=true,tls.scheduler.secretName=s,tls.worker.secretName=w,gateway.replicas=1", "tls.gateway.secretName: name a Secret"},
		"a monitor that is kept out":          {"serviceMonitor.enabled=true", "networkPolicy.monitoring"},
		"an autoscaler that is kept out":      {"worker.autoscaling.by=keda", "networkPolicy.monitoring"},
		"fewer at most than at least":         {"worker.autoscaling.minReplicas=9", "below minReplicas (9)"},
		"measures that probes cannot read":    {"worker.extraArgs={--metrics-tls}", "worker.extraArgs: has --metrics-tls"},
		"a GPU asked for twice":               {`worker.device=cuda:0,worker.resources.limits.nvidia\.com/gpu=2`, "leave it out"},
	} {
		t.Run(name, func(t *testing.T) {
			values, err := strvals.Parse(c.set)
			require.NoError(t, err)
			_, err = render(t, values)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestValuesThatTheSchemaDoesNotKnowAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ set, says string }{
		"an unknown value":                {"worker.replica=3", "replica"},
		"an unknown part":                 {"workers.replicas=3", "workers"},
		"a text for a number":             {"worker.replicas=three", "replicas"},
		"a second GPU":                    {"worker.device=cuda:1", "device"},
		"an argument that is no flag":     {"worker.extraArgs={idle-unload}", "extraArgs"},
		"a name that is no SAN":           {"tls.worker.schedulerSANs={scheduler}", "schedulerSANs"},
		"no name of schedulers":           {"tls.worker.schedulerSANs={}", "schedulerSANs"},
		"a share above one":               {"worker.autoscaling.kvPressure=80", "kvPressure"},
		"an autoscaler that nobody built": {"worker.autoscaling.by=vpa", "by"},
		"a peer of no kind":               {"networkPolicy.clients[0].pods=a", "clients"},
		"two volumes of models":           {"worker.models.volume.hostPath.path=/a,worker.models.volume.emptyDir.medium=Memory", "volume"},
		"no time to drain":                {"scheduler.drainSeconds=0", "drainSeconds"},
	} {
		t.Run(name, func(t *testing.T) {
			values, err := strvals.Parse(c.set)
			require.NoError(t, err)
			_, err = render(t, values)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// schema is a JSON schema of a value.
type schema struct {
	Properties           map[string]schema
	AdditionalProperties any
}

func TestTheSchemaKnowsEveryValueAndNoMore(t *testing.T) {
	var of schema
	require.NoError(t, json.Unmarshal([]byte(read(t, "deploy", "helm", "millrace", "values.schema.json")), &of))
	values, err := chartutil.ReadValuesFile(filepath.Join(chartDir, "values.yaml"))
	require.NoError(t, err)
	delete(of.Properties, "global") // Helm's own
	var walk func(at string, of schema, values map[string]any)
	walk = func(at string, of schema, values map[string]any) {
		require.Equal(t, false, of.AdditionalProperties, at)
		require.Equal(t, slices.Sorted(maps.Keys(of.Properties)), slices.Sorted(maps.Keys(values)), at)
		for name, property := range of.Properties {
			if below, ok := values[name].(map[string]any); ok && property.Properties != nil && !strings.HasSuffix(name, "resources") {
				walk(at+"."+name, property, below)
			}
		}
	}
	walk("", of, values)
}

func TestNotesSayHowToCall(t *testing.T) {
	for name, want := range map[string][]string{
		"default": {"dns:///mill-schedulers.serving.svc:7070", "-m stories ", "Connections are plaintext"},
		"tls":     {"--tls-ca", "--tls-cert", "--token-file"},
		"gateway": {"http://mill-gateway.serving.svc:8080/v1"},
		"vectors": {"-m MODEL "},
	} {
		templates, err := render(t, variants(t)[name])
		require.NoError(t, err)
		for _, text := range want {
			require.Contains(t, templates["millrace/templates/NOTES.txt"], text, name)
		}
	}
}
