package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/weightedroundrobin" // registers the policy
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// dialAll makes a connection to several servers, with a service config.
func dialAll(t *testing.T, config string, addresses ...string) *grpc.ClientConn {
	t.Helper()
	known := manual.NewBuilderWithScheme("known")
	var state resolver.State
	for _, a := range addresses {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: a}}})
	}
	known.InitialState(state)
	conn, err := grpc.NewClient("known:///servers", grpc.WithResolvers(known), grpc.WithDefaultServiceConfig(config),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// weighted starts two workers; the first uses a hundred times as much of its cache.
func weighted(t *testing.T) (full, idle *server) {
	t.Helper()
	full, idle = startWorker(t, "full", paced...), startWorker(t, "idle", paced...)
	crowd := endless()
	crowd.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("once upon a time ", 5000)}
	crowd.Stopping.MaxTokens = ptr(int32(longContext / 2))
	beginAll(t, full, 1, func() *pb.GenerateRequest { return crowd })
	beginAll(t, idle, 1, endless)
	return full, idle
}

// untilWeighed makes calls until three of four reach a worker.
func untilWeighed(t *testing.T, conn *grpc.ClientConn, to string) {
	t.Helper()
	const calls = 40
	most, client := 0, pb.NewInferenceServiceClient(conn)
	for deadline := time.Now().Add(hang); time.Now().Before(deadline); {
		there := 0
		for range calls {
			o := generate(within(t), client, ask(long, 3))
			require.NoError(t, o.err)
			if o.started.GetWorkerId() == to {
				there++
			}
		}
		if most = max(most, there); there >= calls*3/4 {
			t.Logf("%d of %d calls", there, calls)
			return
		}
	}
	require.FailNow(t, "calls are not weighed", "at most %d of %d went to %s", most, calls, to)
}

// Callers without a scheduler weigh workers by the load report in each answer's trailers.
func TestCallersWeighWorkersByTheirLoadReports(t *testing.T) {
	t.Parallel()
	full, idle := weighted(t)
	untilWeighed(t, dialAll(t, `{"loadBalancingConfig": [{"weighted_round_robin": {"blackoutPeriod": "0s", "weightUpdatePeriod": "0.1s"}}]}`,
		full.address, idle.address), "idle")
}

func TestRetriesOnlyWithoutAnswer(t *testing.T) {
	t.Parallel()
	requireSafeRetries(t, func(t *testing.T, addresses ...string) *grpc.ClientConn {
		t.Helper()
		return dialAll(t, retrying, addresses...)
	})
}
