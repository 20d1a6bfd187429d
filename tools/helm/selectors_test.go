package helm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// chosen are the programs whose pods a selector takes.
func (f fleet) chosen(t *testing.T, by *meta.LabelSelector) []string {
	t.Helper()
	selector, err := meta.LabelSelectorAsSelector(by)
	require.NoError(t, err)
	var names []string
	for name, pod := range f.pods() {
		if selector.Matches(labels.Set(pod.Labels)) {
			names = append(names, name)
		}
	}
	return slices.Sorted(slices.Values(names))
}

// program is the one that a document is about, by the end of its name.
func program(name string) string {
	for _, part := range []string{"worker", "gateway"} {
		if strings.Contains(strings.TrimPrefix(name, release), part) {
			return "millrace-" + part
		}
	}
	return "millrace-scheduler"
}

func TestSelectorsMatchPodsOfTheirPart(t *testing.T) {
	// Every selector matches the pods of its part and no others.
	each(t, func(all variant) {
		t := all.T
		selectors := map[string]*meta.LabelSelector{
			"statefulset " + all.worker.Name: all.worker.Spec.Selector, "deployment " + all.scheduler.Name: all.scheduler.Spec.Selector,
		}
		if all.gateway != nil {
			selectors["deployment "+all.gateway.Name] = all.gateway.Spec.Selector
		}
		for _, s := range all.services {
			selectors["service "+s.Name] = &meta.LabelSelector{MatchLabels: s.Spec.Selector}
		}
		for _, b := range all.budgets {
			selectors["budget "+b.Name] = b.Spec.Selector
		}
		for _, p := range all.policies {
			selectors["policy "+p.Name] = &p.Spec.PodSelector
		}
		for name, by := range selectors {
			require.Equal(t, []string{program(strings.Fields(name)[1])}, all.chosen(t, by), name)
		}
		for _, m := range all.monitors {
			by, err := meta.LabelSelectorAsSelector(&m.Spec.Selector)
			require.NoError(t, err)
			var read []string // services that Prometheus reads
			for _, s := range all.services {
				if by.Matches(labels.Set(s.Labels)) && slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool { return p.Name == m.Spec.Endpoints[0].Port }) {
					read = append(read, s.Name)
				}
			}
			require.Equal(t, []string{strings.TrimSuffix(m.Name, "s") + "s"}, read, "each process once")
		}
	})
}

func TestPortsAreThoseOfContainers(t *testing.T) {
	each(t, func(all variant) {
		t := all.T
		of := map[string]map[string]int32{} // by program and name
		for name, pod := range all.pods() {
			of[name] = map[string]int32{}
			for _, p := range pod.Spec.Containers[0].Ports {
				of[name][p.Name] = p.ContainerPort
			}
			port, metrics := "grpc", "metrics"
			if name == "millrace-gateway" {
				port, metrics = "http", "http-metrics"
			}
			require.ElementsMatch(t, []string{port, metrics}, slices.Collect(maps.Keys(of[name])))
			for _, probe := range []*core.Probe{pod.Spec.Containers[0].LivenessProbe, pod.Spec.Containers[0].ReadinessProbe, pod.Spec.Containers[0].StartupProbe} {
				switch {
				case probe == nil:
				case probe.GRPC != nil:
					require.Equal(t, of[name]["grpc"], probe.GRPC.Port)
				default:
					require.Contains(t, of[name], probe.HTTPGet.Port.StrVal)
				}
			}
			listen := flagsOf(pod)
			require.Equal(t, []string{fmt.Sprint(":", of[name][port])}, listen["listen"])
			require.Equal(t, []string{fmt.Sprint(":", of[name][metrics])}, listen["metrics-listen"])
		}
		for _, s := range all.services {
			for _, p := range s.Spec.Ports {
				require.Equal(t, of[program(s.Name)][p.TargetPort.StrVal], p.Port, "%s %s: headless services have no other ports than their pods", s.Name, p.Name)
			}
		}
		for _, p := range all.policies {
			for _, rule := range p.Spec.Ingress {
				for _, port := range rule.Ports {
					require.Contains(t, slices.Collect(maps.Values(of[program(p.Name)])), port.Port.IntVal)
				}
			}
		}
	})
}

func TestSchedulersFollowTheNameOfAllWorkers(t *testing.T) {
	each(t, func(all variant) {
		t := all.T
		var headless *core.Service
		for _, s := range all.services {
			if s.Name == all.worker.Spec.ServiceName {
				headless = s
			}
		}
		require.NotNil(t, headless)
		require.Equal(t, core.ClusterIPNone, headless.Spec.ClusterIP)
		require.True(t, headless.Spec.PublishNotReadyAddresses, "a worker that drains is heard until its last stream is elsewhere")
		require.Equal(t, []string{"dns:///" + headless.Name + "." + namespace + ".svc:7071"}, flagsOf(all.scheduler.Spec.Template)["workers"])
		require.Equal(t, []string{"$(POD_NAME)"}, flagsOf(all.worker.Spec.Template)["worker-id"])
	})
}

func TestNetworkPoliciesAllowOnlyCalls(t *testing.T) {
	// The policies admit calls, and nothing else unless the values name it.
	all := install(t, variants(t)["default"])
	for _, p := range all.policies {
		require.Len(t, p.Spec.Ingress, 1, "%s: measures are read by nobody unless values name them", p.Name)
		switch program(p.Name) {
		case "millrace-worker":
			require.Empty(t, p.Spec.Egress, "a worker calls nobody")
			require.Len(t, p.Spec.Ingress[0].From, 1)
			require.Equal(t, []string{"millrace-scheduler"}, all.chosen(t, p.Spec.Ingress[0].From[0].PodSelector))
		default:
			require.Empty(t, p.Spec.Ingress[0].From, "everybody may call schedulers")
			require.Equal(t, []string{"millrace-worker"}, all.chosen(t, p.Spec.Egress[0].To[0].PodSelector))
			require.EqualValues(t, 7071, p.Spec.Egress[0].Ports[0].Port.IntVal)
			require.Len(t, p.Spec.Egress, 2, "beside them it asks for names")
		}
	}
	for _, p := range install(t, variants(t)["tls"]).policies {
		if program(p.Name) == "millrace-scheduler" {
			require.Len(t, p.Spec.Ingress[0].From, 1, "values say who may call")
		}
	}
	for _, p := range install(t, variants(t)["keda"]).policies {
		require.Len(t, p.Spec.Ingress, 2, "Prometheus reads measures")
	}
}
