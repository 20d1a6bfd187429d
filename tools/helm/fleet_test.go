package helm

import (
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/yaml"
)

// fleet is what an installation consists of.
type fleet struct {
	worker    *apps.StatefulSet
	scheduler *apps.Deployment
	gateway   *apps.Deployment // nil: there is none
	services  []*core.Service
	budgets   []*policy.PodDisruptionBudget
	policies  []*networking.NetworkPolicy
	scalers   []*autoscaling.HorizontalPodAutoscaler
	monitors  []*monitoring.ServiceMonitor
	scaled    []*scaledObject
}

// scaledObject has the fields of KEDA's type (keda.sh/v1alpha1) that the chart may use. KEDA's own
// module requires most of Kubernetes.
type scaledObject struct {
	meta.TypeMeta
	Metadata meta.ObjectMeta `json:"metadata"`
	Spec     struct {
		ScaleTargetRef                                    autoscaling.CrossVersionObjectReference
		MinReplicaCount, MaxReplicaCount, PollingInterval int32
		Advanced                                          struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior autoscaling.HorizontalPodAutoscalerBehavior
			}
		}
		Triggers []struct {
			Type, MetricType string
			Metadata         map[string]string
		}
	}
}

// install decodes everything that an installation makes. Fields that a type does not have are refused, and those given twice.
func install(t *testing.T, values map[string]any) (all fleet) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		core.AddToScheme, apps.AddToScheme, policy.AddToScheme, networking.AddToScheme, autoscaling.AddToScheme,
	} {
		require.NoError(t, add(scheme))
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	for _, raw := range documents(t, values) {
		var kind meta.TypeMeta
		require.NoError(t, yaml.Unmarshal(raw, &kind))
		switch kind.GroupVersionKind().String() {
		case "monitoring.coreos.com/v1, Kind=ServiceMonitor":
			o := &monitoring.ServiceMonitor{}
			require.NoError(t, yaml.UnmarshalStrict(raw, o), "%s", raw)
			all.monitors = append(all.monitors, o)
			continue
		case "keda.sh/v1alpha1, Kind=ScaledObject":
			o := &scaledObject{}
			require.NoError(t, yaml.UnmarshalStrict(raw, o), "%s", raw)
			all.scaled = append(all.scaled, o)
			continue
		}
		o, _, err := strict.Decode(raw, nil, nil)
		require.NoError(t, err, "%s", raw)
		switch o := o.(type) {
		case *apps.StatefulSet:
			require.Nil(t, all.worker)
			all.worker = o
		case *apps.Deployment:
			to := &all.scheduler
			if program(o.Name) == "millrace-gateway" {
				to = &all.gateway
			}
			require.Nil(t, *to)
			*to = o
		case *core.Service:
			all.services = append(all.services, o)
		case *policy.PodDisruptionBudget:
			all.budgets = append(all.budgets, o)
		case *networking.NetworkPolicy:
			all.policies = append(all.policies, o)
		case *autoscaling.HorizontalPodAutoscaler:
			all.scalers = append(all.scalers, o)
		default:
			require.Fail(t, "no check knows it", "%T", o)
		}
	}
	require.NotNil(t, all.worker)
	require.NotNil(t, all.scheduler)
	return all
}

// pods are the templates of all parts, by the program that they run.
func (f fleet) pods() map[string]core.PodTemplateSpec {
	all := map[string]core.PodTemplateSpec{"millrace-worker": f.worker.Spec.Template, "millrace-scheduler": f.scheduler.Spec.Template}
	if f.gateway != nil {
		all["millrace-gateway"] = f.gateway.Spec.Template
	}
	return all
}

func TestDocumentWithUnknownFieldIsRefused(t *testing.T) {
	// The types refuse a misspelt field, which the cluster would ignore or refuse.
	err := yaml.UnmarshalStrict([]byte("apiVersion: keda.sh/v1alpha1\nspec: {minReplicas: 1}"), &scaledObject{})
	require.ErrorContains(t, err, "minReplicas")
	err = yaml.UnmarshalStrict([]byte("spec: {endpoints: [{ports: metrics}]}"), &monitoring.ServiceMonitor{})
	require.ErrorContains(t, err, "ports")
}

func TestEachVariantHasWhatItAsksFor(t *testing.T) {
	count := func(f fleet) []int {
		return []int{len(f.services), len(f.budgets), len(f.policies), len(f.monitors), len(f.scalers), len(f.scaled)}
	}
	want := map[string][]int{
		"default": {3, 2, 2, 0, 0, 0}, "gpu": {3, 2, 2, 0, 0, 0}, "vectors": {3, 2, 2, 0, 0, 0}, "tls": {3, 2, 2, 0, 0, 0},
		"keda": {3, 2, 2, 2, 0, 1}, "adapter": {3, 2, 2, 2, 1, 0}, "bare": {3, 0, 0, 0, 0, 0}, "gateway": {5, 3, 3, 0, 0, 0},
	}
	for name, values := range variants(t) {
		require.Equal(t, want[name], count(install(t, values)), name)
	}
}
