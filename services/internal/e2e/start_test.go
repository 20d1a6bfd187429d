package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestProgramsExplainAFailedStart(t *testing.T) {
	t.Parallel()
	holder := serve(t, schedulerBinary, "--workers", freeAddress(t))
	taken := holder.address
	cases := map[string]struct {
		binary string
		args   []string
		says   string
	}{
		"a worker with an unknown flag":             {workerBinary, []string{"--no-such-flag"}, "no-such-flag"},
		"a worker with a flag's value out of range": {workerBinary, []string{"--models", modelsDir, "--max-sequences", "1025"}, "--max-sequences"},
		"a worker without its models folder":        {workerBinary, []string{"--models", modelsDir + "/nowhere"}, "--models"},
		"a worker on a device that is not there": {
			workerBinary, []string{"--models", modelsDir, "--device", "cuda:99", "--listen", "127.0.0.1:0"}, "device",
		},
		"a worker with a model to load that is not there": {
			workerBinary, []string{"--models", modelsDir, "--device", "cpu", "--load", "absent", "--listen", "127.0.0.1:0"}, `"absent"`,
		},
		"a worker on a port that is taken": {
			workerBinary, []string{"--models", modelsDir, "--device", "sim", "--listen", taken}, "address already in use",
		},
		"a scheduler without workers":        {schedulerBinary, nil, "--workers"},
		"a scheduler with an invalid worker": {schedulerBinary, []string{"--workers", "not an address"}, "not an address"},
		"a scheduler on a port that is taken": {
			schedulerBinary, []string{"--workers", "127.0.0.1:1", "--listen", taken}, "address already in use",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p := launch(t, c.binary, c.args...)
			require.Positive(t, p.exit(t))
			lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
			require.Contains(t, lines[len(lines)-1], c.says, "the last line has the error")
			require.NotContains(t, p.log.String(), "goroutine ")
		})
	}
	require.True(t, holder.serving(t))
}

func TestMissingGPUHasItsOwnExitCode(t *testing.T) {
	t.Parallel()
	for _, device := range []string{"gpu", "cuda:99", "cuda:x"} {
		p := launch(t, workerBinary, "--models", modelsDir, "--device", device, "--listen", "127.0.0.1:0")
		require.Equal(t, 2, p.exit(t), device)
		require.Equal(t, 1, strings.Count(p.log.String(), "\n"), "%s", p.log)
	}
}

func TestSelfTestPrintsOneTable(t *testing.T) {
	t.Parallel()
	p := launch(t, workerBinary, "--self-test", "--device", "cpu", "--threads", "1")
	require.Equal(t, 0, p.exit(t), "%s", p.log)
	for _, row := range []string{
		"matmul", "matvec", "softmax", "rms_norm", "add", "mul", "scale", "silu", "swiglu", "copy", "rope", "attention", "model",
	} {
		require.Regexp(t, `(?m)^`+row+` .*\bok *$`, p.log.String())
	}
	require.Len(t, regexp.MustCompile(`(?m)^check +shape +error`).FindAllString(p.log.String(), -1), 1)
}

// Health and watch streams last as long as their clients and must not delay the stop of a server.
func TestIdleServerStopsDespiteWatchers(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	for _, p := range []*server{w, s} {
		flipped := p.readiness(t)
		watch, err := s.fleet.WatchFleet(within(t), &pb.WatchFleetRequest{})
		require.NoError(t, err)
		_, err = watch.Recv()
		require.NoError(t, err)
		p.terminate()
		flipped()
		require.Equal(t, 0, p.exit(t))
		require.NotContains(t, p.log.String(), "cutting off running calls")
	}
}
