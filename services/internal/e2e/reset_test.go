package e2e

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

// A proxy that has begun to pass an answer on can only reset its stream when the server is lost, and gRPC calls a reset INTERNAL. That
// it is no word of ours is what tells it from a fault of the server.
func TestAProxyResetsTheStreamsOfASchedulerThatIsLost(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	p := startProxy(t, []*server{s})
	c := beginAll(t, p.server, 1, endless)[0]
	s.kill()
	require.Equal(t, fault{code: codes.Internal}, faultOf(c.end().err), "%v", c.err)
	w.untilIdle(t)
}

func TestClientsOfOtherLanguagesGoOnThroughAProxy(t *testing.T) {
	t.Parallel()
	inEach(t, func(tell teller) {
		t := tell.T
		w := startWorker(t, "w1", "--device", "sim:step=5ms,prefill=0s,decode=0s", "--load", long)
		a, b := startScheduler(t, []*server{w}), startScheduler(t, []*server{w})
		for _, s := range []*server{a, b} {
			s.untilServed(t, long, 1)
		}
		p := startProxy(t, []*server{a, {address: b.address + " backup"}})
		const tokens = 1500
		want := toldInGo(t, startWorker(t, "w2", append([]string{"--load", long}, quick...)...), long, tokens)
		printed, complaint, err := tell.story(func(string) { a.kill() }, "--target", p.address, "--model", long,
			"--seed", "7", "--max-tokens", strconv.Itoa(tokens))
		require.NoError(t, err, complaint)
		require.Equal(t, want, printed)
		require.Eventually(t, func() bool { return strings.Contains(b.log.String(), "grpc.method=Generate") }, hang, hang/1000, "nothing was lost: nothing is proven")
	})
}
