package helm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

func TestGatewaysFollowTheNameOfAllSchedulers(t *testing.T) {
	all := install(t, variants(t)["gateway"])
	flags := flagsOf(all.gateway.Spec.Template)
	require.Equal(t, []string{"dns:///mill-schedulers.serving.svc:7070"}, flags["target"])
	require.Equal(t, []string{"/etc/millrace/resume-key/key"}, flags["resume-key-file"])
	for _, p := range all.policies {
		switch program(p.Name) {
		case "millrace-gateway":
			require.Len(t, p.Spec.Ingress[0].From, 1)
			require.Equal(t, []string{"millrace-scheduler"}, all.chosen(t, p.Spec.Egress[0].To[0].PodSelector))
		case "millrace-scheduler":
			from := p.Spec.Ingress[0].From
			require.Equal(t, []string{"millrace-gateway"}, all.chosen(t, from[len(from)-1].PodSelector), "values name other callers, and gateways call too")
		}
	}
}

func TestSidecarCallsItsWorker(t *testing.T) {
	secrets := map[string]any{"enabled": true, "scheduler": map[string]any{"secretName": "s"}, "worker": map[string]any{"secretName": "w"},
		"gateway": map[string]any{"secretName": "g"}}
	for name, tls := range map[string]map[string]any{"plaintext": {}, "tls": secrets} {
		t.Run(name, func(t *testing.T) {
			all := install(t, map[string]any{"tls": tls, "gateway": map[string]any{"sidecar": true, "resumeKey": map[string]any{"secretName": "k"}}})
			require.Nil(t, all.gateway)
			pod := all.worker.Spec.Template
			require.Len(t, pod.Spec.Containers, 2)
			gateway := pod.Spec.Containers[1]
			require.Equal(t, []string{"millrace-gateway"}, gateway.Command)
			require.Contains(t, gateway.Args, "--target=127.0.0.1:7071")
			ports, mounts := map[int32]bool{}, map[string]string{}
			for _, c := range pod.Spec.Containers {
				for _, p := range c.Ports {
					require.False(t, ports[p.ContainerPort], "two containers have port %d", p.ContainerPort)
					ports[p.ContainerPort] = true
				}
			}
			for _, m := range gateway.VolumeMounts {
				mounts[m.MountPath] = m.Name
			}
			for _, arg := range gateway.Args {
				if _, file, ok := strings.Cut(arg, "=/etc/millrace/"); ok {
					folder, _, _ := strings.Cut(file, "/")
					require.Contains(t, mounts, "/etc/millrace/"+folder, arg)
				}
			}
			for _, name := range mounts {
				require.True(t, hasVolume(pod, name), name)
			}
			evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
			require.NoError(t, err)
			result := policy.AggregateCheckResults(evaluator.EvaluatePod(api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}, &pod.ObjectMeta, &pod.Spec))
			require.True(t, result.Allowed, result.ForbiddenDetail())
			require.EqualValues(t, 30+5+15, *pod.Spec.TerminationGracePeriodSeconds)
		})
	}
}

// hasVolume reports whether a pod has a volume.
func hasVolume(pod core.PodTemplateSpec, name string) bool {
	for _, v := range pod.Spec.Volumes {
		if v.Name == name {
			return true
		}
	}
	return false
}
