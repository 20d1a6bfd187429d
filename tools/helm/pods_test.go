package helm

import (
	"path"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// flagsOf are the flags of a pod's program, with the values that each is given.
func flagsOf(pod core.PodTemplateSpec) map[string][]string {
	all := map[string][]string{}
	for _, arg := range pod.Spec.Containers[0].Args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		all[name] = append(all[name], value)
	}
	return all
}

func TestPodsKeepTheRestrictedPodSecurityStandard(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	each(t, func(all variant) {
		t := all.T
		for name, pod := range all.pods() {
			result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec))
			require.True(t, result.Allowed, "%s: %s", name, result.ForbiddenDetail())
			require.True(t, *pod.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem)
			require.False(t, *pod.Spec.AutomountServiceAccountToken)
		}
	})
}

func TestFilesThatFlagsNameAreMounted(t *testing.T) {
	secrets := 0
	each(t, func(all variant) {
		t := all.T
		for name, pod := range all.pods() {
			files := map[string]int{} // that secrets put below the mounts, by how many flags name them
			mounts := map[string]string{}
			for _, m := range pod.Spec.Containers[0].VolumeMounts {
				require.Empty(t, m.SubPath, "a file that is mounted alone does not change with its secret")
				mounts[m.Name] = m.MountPath
			}
			for _, v := range pod.Spec.Volumes {
				require.Contains(t, mounts, v.Name, "%s: a volume that nothing mounts", name)
				if v.Secret != nil {
					require.NotEmpty(t, v.Secret.SecretName)
					require.EqualValues(t, 0o440, *v.Secret.DefaultMode)
					for _, item := range v.Secret.Items {
						files[path.Join(mounts[v.Name], item.Path)] = 0
					}
					secrets++
				}
			}
			for flag, values := range flagsOf(pod) {
				for _, v := range values {
					if strings.HasPrefix(v, "/etc/") {
						require.Contains(t, files, v, "%s --%s: no secret has it", name, flag)
						files[v]++
					}
				}
			}
			for file, flags := range files {
				require.Positive(t, flags, "%s: %s is mounted and no flag names it", name, file)
			}
		}
	})
	require.Equal(t, 6, secrets, "of the variant with TLS: two of it, two of keys, one of a token; of that with gateways: a key")
}

func TestPodsHaveTimeForTheirDrain(t *testing.T) {
	each(t, func(all variant) {
		t := all.T
		for name, pod := range all.pods() {
			drain, err := time.ParseDuration(flagsOf(pod)["drain-timeout"][0])
			require.NoError(t, err)
			if l := pod.Spec.Containers[0].Lifecycle; l != nil {
				drain += time.Duration(l.PreStop.Sleep.Seconds) * time.Second
			}
			left := time.Duration(*pod.Spec.TerminationGracePeriodSeconds)*time.Second - drain
			require.GreaterOrEqual(t, left, 15*time.Second, name)
		}
	})
}

func TestAWorkerOnAGPUAsksForOne(t *testing.T) {
	each(t, func(all variant) {
		t := all.T
		worker := all.worker.Spec.Template.Spec.Containers[0]
		gpus := worker.Resources.Limits["nvidia.com/gpu"]
		onGPU := strings.HasPrefix(flagsOf(all.worker.Spec.Template)["device"][0], "cuda:")
		require.Equal(t, onGPU, gpus.Value() == 1)
		require.Equal(t, onGPU, strings.HasSuffix(worker.Image, "-cuda"), worker.Image)
		require.NotContains(t, all.scheduler.Spec.Template.Spec.Containers[0].Image, "cuda")
	})
}
