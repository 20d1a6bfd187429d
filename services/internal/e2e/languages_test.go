package e2e

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// languages are the clients of examples, by how each is run; a test is skipped where there is no way.
var languages = map[string]func(*testing.T) (command, env []string){"python": python, "java": java, "node": nodejs}

// inEach runs a test with the client of each language.
func inEach(t *testing.T, test func(teller)) {
	t.Helper()
	for name, client := range languages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command, env := client(t)
			test(teller{t, command, env})
		})
	}
}

// teller is a test, and the client that tells stories in it.
type teller struct {
	*testing.T
	command, env []string
}

// story runs it; seen is called with what it has printed so far, whenever it prints.
func (c teller) story(seen func(string), args ...string) (printed, complaint string, err error) {
	t := c.T
	t.Helper()
	cmd := exec.CommandContext(within(t), c.command[0], append(c.command[1:len(c.command):len(c.command)], args...)...)
	cmd.Env = c.env
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var all strings.Builder
	for buffer := make([]byte, 4096); ; {
		n, err := out.Read(buffer)
		all.Write(buffer[:n])
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if seen != nil {
			seen(all.String())
		}
	}
	err = cmd.Wait() // what it complained of is whole then
	return all.String(), complaints.String(), err
}

// toldInGo is a story as a Go client gets it.
func toldInGo(t *testing.T, on *server, model string, tokens int32) string {
	t.Helper()
	in := &pb.GenerateRequest{
		Model: model, Input: &pb.GenerateRequest_Prompt{Prompt: "Once upon a time"},
		Sampling: &pb.Sampling{Temperature: ptr(float32(0.7)), TopP: ptr(float32(0.9)), Seed: ptr(uint64(7))},
		Stopping: &pb.Stopping{MaxTokens: ptr(tokens)},
	}
	o := generate(within(t), on.infer, in)
	require.NoError(t, o.err)
	return o.text
}

func TestClientsOfOtherLanguagesStreamAndCancel(t *testing.T) {
	t.Parallel()
	inEach(t, func(tell teller) {
		t := tell.T
		w := startWorker(t, "w1", "--device", "cpu", "--load", stories)
		s := startScheduler(t, []*server{w})
		s.untilServed(t, stories, 1)
		printed, complaint, err := tell.story(nil, "--target", s.address, "--seed", "7", "--max-tokens", "60")
		require.NoError(t, err, complaint)
		require.Equal(t, toldInGo(t, w, stories, 60), printed)
		require.Contains(t, complaint, "60 tokens")

		printed, complaint, err = tell.story(nil, "--target", s.address, "--seed", "7", "--stop-after", "5")
		require.NoError(t, err, complaint)
		require.True(t, strings.HasPrefix(toldInGo(t, w, stories, 60), printed), printed)
		w.untilIdle(t)

		_, complaint, err = tell.story(nil, "--target", s.address, "--model", "no-such-model")
		require.Error(t, err)
		require.Contains(t, complaint, "NOT_FOUND")
	})
}

func TestLanguagesNameARefusedConnection(t *testing.T) {
	t.Parallel()
	inEach(t, func(tell teller) {
		_, complaint, err := tell.story(nil, "--target", freeAddress(t))
		require.Error(tell, err)
		require.Contains(tell, complaint, "UNAVAILABLE")
		require.Regexp(tell, "(?i)connection refused|ECONNREFUSED", complaint)
		require.NotContains(tell, complaint, "SLF4J")
	})
}

func TestClientsOfOtherLanguagesHaveADeadline(t *testing.T) {
	t.Parallel()
	inEach(t, func(tell teller) {
		t := tell.T
		w := startWorker(t, "w1", "--device", "sim:step=1s,prefill=0s,decode=0s", "--load", long)
		_, complaint, err := tell.story(nil, "--target", w.address, "--model", long, "--max-tokens", "1000", "--timeout", "3")
		require.Error(t, err)
		require.Contains(t, complaint, "DEADLINE_EXCEEDED")
		w.untilIdle(t)
	})
}

// Debian's Netty has no ALPN, so that Java is not among those.
func TestClientsOfOtherLanguagesSpeakMutualTLS(t *testing.T) {
	t.Parallel()
	inEach(t, func(tell teller) {
		t := tell.T
		if tell.command[0] == "java" {
			t.Skip("Debian's Netty has no ALPN, which gRPC needs for TLS: take grpc-netty-shaded from Maven's repository")
		}
		g := guard(t, 1)
		g.scheduler.untilServed(t, long, 1)
		flags := []string{"--target", g.scheduler.address, "--model", long, "--max-tokens", "3", "--tls-ca", g.ca.File}
		_, complaint, err := tell.story(nil, append(slices.Clone(flags), "--tls-cert", g.files["client"].Cert, "--tls-key", g.files["client"].Key)...)
		require.NoError(t, err, complaint)
		require.Contains(t, complaint, "3 tokens")
		_, complaint, err = tell.story(nil, flags...)
		require.Error(t, err)
		require.Contains(t, complaint, "UNAVAILABLE", "who shows no certificate gets no answer")
	})
}

// The helpers of examples do what docs/rig.md says of clients whose scheduler is lost.
func TestClientsOfOtherLanguagesGoOnAtAnotherScheduler(t *testing.T) {
	t.Parallel()
	inEach(t, func(tell teller) {
		t := tell.T
		w := startWorker(t, "w1", "--device", "sim:step=5ms,prefill=0s,decode=0s", "--load", long)
		a, b := startScheduler(t, []*server{w}), startScheduler(t, []*server{w})
		for _, s := range []*server{a, b} {
			s.untilServed(t, long, 1)
		}
		const tokens = 1500
		want := toldInGo(t, startWorker(t, "w2", append([]string{"--load", long}, quick...)...), long, tokens)
		printed, complaint, err := tell.story(func(string) { a.kill() }, "--target", a.address+","+b.address, "--model", long,
			"--seed", "7", "--max-tokens", strconv.Itoa(tokens))
		require.NoError(t, err, complaint)
		require.Equal(t, want, printed)
		require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "grpc.method=Generate") }, hang, hang/1000, "nothing was lost: nothing is proven")
	})
}
