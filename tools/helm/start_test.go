package helm

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
)

// hang guards against what never happens.
const hang = 2 * time.Minute

// node is this machine in the place of one of Kubernetes: sockets stand for addresses, and folders for secrets.
type node struct {
	bin, dir string
}

// build builds the programs.
func build(t *testing.T) node {
	t.Helper()
	dir, err := os.MkdirTemp("", "helm-") //nolint:usetesting // a test's own folder is too long for the name of a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	n := node{bin: filepath.Join(dir, "bin"), dir: dir}
	require.NoError(t, os.Mkdir(n.bin, 0o700))
	for program, of := range map[string]string{"millrace-worker": "gpuworker", "millrace-scheduler": "scheduler", "millrace-gateway": "gateway", "millrace": "millrace"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(n.bin, program), "./services/"+of)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return n
}

// run runs one to its end.
func (n node) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(n.bin, program), args...).Output()
	require.NoError(t, err, "%s %v", program, args)
	return string(out)
}

// write writes a file of a secret.
func (n node) write(t *testing.T, text string, parts ...string) {
	t.Helper()
	file := filepath.Join(append([]string{n.dir}, parts...)...)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}

// move translates a flag of a pod to this machine: paths and addresses of the pod become those of
// the test.
func (n node) move(t *testing.T, program, arg string) string {
	t.Helper()
	models, err := filepath.Abs(filepath.Join(root, "models"))
	require.NoError(t, err)
	for in, here := range map[string]string{
		"--listen=:7070": "--listen=unix:" + filepath.Join(n.dir, "s"), "--metrics-listen=:9070": "--metrics-listen=unix:" + filepath.Join(n.dir, "ms"),
		"--listen=:7071": "--listen=unix:" + filepath.Join(n.dir, "w"), "--metrics-listen=:9071": "--metrics-listen=unix:" + filepath.Join(n.dir, "mw"),
		"--listen=:8080": "--listen=unix:" + filepath.Join(n.dir, "g"), "--metrics-listen=:9080": "--metrics-listen=unix:" + filepath.Join(n.dir, "mg"),
		"--target=dns:///mill-schedulers.serving.svc:7070": "--target=unix:" + filepath.Join(n.dir, "s"),
		"--workers=dns:///mill-workers.serving.svc:7071":   "--workers=unix:" + filepath.Join(n.dir, "w"),
		"--worker-id=$(POD_NAME)":                          "--worker-id=mill-worker-0",
		"--models=/usr/share/millrace/models":              "--models=" + models,
	} {
		if arg == in {
			return here
		}
	}
	return strings.Replace(arg, "/etc/millrace", filepath.Join(n.dir, program), 1)
}

// client returns an HTTP client of a socket.
func (n node) client(socket string) *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.dir, socket))
		},
	}}
}

// start starts a pod's program, and repeats its probes until they succeed, as the kubelet does.
func (n node) start(t *testing.T, pod core.PodTemplateSpec, metrics string) {
	t.Helper()
	container := pod.Spec.Containers[0]
	var args []string
	for _, arg := range container.Args {
		args = append(args, n.move(t, container.Command[0], arg))
	}
	log := &strings.Builder{}
	cmd := exec.CommandContext(t.Context(), filepath.Join(n.bin, container.Command[0]), args...)
	cmd.Stderr = log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		<-ended
		require.Zero(t, cmd.ProcessState.ExitCode(), "%s", log)
	})
	kubelet := n.client(metrics)
	succeeds := func(probe *core.Probe) bool {
		if probe == nil {
			return true
		}
		if probe.GRPC != nil { // the kubelet asks the standard service, as this does
			return exec.CommandContext(t.Context(), filepath.Join(n.bin, "millrace"), "health", "--target", "unix:"+filepath.Join(n.dir, metrics[1:])).Run() == nil
		}
		in, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://pod"+probe.HTTPGet.Path, http.NoBody)
		require.NoError(t, err)
		out, err := kubelet.Do(in)
		return err == nil && out.Body.Close() == nil && out.StatusCode == http.StatusOK
	}
	for _, probe := range []*core.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
		for guard := time.Now().Add(hang); !succeeds(probe); time.Sleep(10 * time.Millisecond) {
			select {
			case <-ended:
				require.FailNow(t, "it ended", "%v: %s", args, log)
			default:
				require.True(t, time.Now().Before(guard), "%v never succeeds", probe)
			}
		}
	}
}

// The programs themselves take the arguments of pods, their probes succeed, and a story comes through both.
func TestTheProgramsServeAsPodsStartThem(t *testing.T) {
	n := build(t)
	certs := filepath.Join(n.dir, "certs")
	n.run(t, "millrace", "certs", "--dir", certs, "worker", "scheduler", "gateway")
	file := func(name string) string {
		text, err := os.ReadFile(filepath.Join(certs, name))
		require.NoError(t, err)
		return string(text)
	}
	for _, program := range []string{"worker", "scheduler"} {
		n.write(t, file(program+".pem"), "millrace-"+program, "tls", "tls.crt")
		n.write(t, file(program+"-key.pem"), "millrace-"+program, "tls", "tls.key")
		n.write(t, file("ca.pem"), "millrace-"+program, "tls", "ca.crt")
	}
	n.write(t, n.run(t, "millrace", "keys", "new", "--id", "web", "--save", filepath.Join(n.dir, "web")), "millrace-scheduler", "keys", "keys.yaml")
	n.write(t, n.run(t, "millrace", "keys", "new", "--id", "scheduler", "--tenant", "*", "--rights", "generate,vectors,load,admin,health",
		"--save", filepath.Join(n.dir, "token")), "millrace-worker", "keys", "keys.yaml")
	token, err := os.ReadFile(filepath.Join(n.dir, "token"))
	require.NoError(t, err)
	n.write(t, string(token), "millrace-scheduler", "worker-token", "token")

	n.write(t, strings.Repeat("k", 32), "millrace-gateway", "resume-key", "key")
	client := map[string][]string{
		"default": nil, "gateway": nil,
		"tls": {"--tls-ca", filepath.Join(certs, "ca.pem"), "--tls-cert", filepath.Join(certs, "gateway.pem"),
			"--tls-key", filepath.Join(certs, "gateway-key.pem"), "--tls-server-san", "dns:scheduler", "--token-file", filepath.Join(n.dir, "web")},
	}
	for name, flags := range client {
		t.Run(name, func(t *testing.T) {
			all := install(t, variants(t)[name])
			n.start(t, all.worker.Spec.Template, "mw")
			n.start(t, all.scheduler.Spec.Template, "ms")
			args := append([]string{"generate", "--target", "unix:" + filepath.Join(n.dir, "s"), "-m", "stories", "--max-tokens", "8", "Once upon a time"}, flags...)
			require.NotEmpty(t, n.run(t, "millrace", args...))
			if all.gateway != nil {
				n.start(t, all.gateway.Spec.Template, "mg")
				in, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://pod/v1/completions", strings.NewReader(`{"model":"stories","prompt":"Once","max_tokens":4}`))
				require.NoError(t, err)
				out, err := n.client("g").Do(in)
				require.NoError(t, err)
				require.NoError(t, out.Body.Close())
				require.Equal(t, http.StatusOK, out.StatusCode)
			}
		})
	}
}
