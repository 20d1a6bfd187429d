package fleet_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

func TestResolvedAddressesJoinAndLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		n.Start(t, "10.0.0.1:7", workertest.New("w1", "i", "m"))
		n.Start(t, "10.0.0.2:7", workertest.New("w2", "i", "m"))
		var mu sync.Mutex
		hosts, failure := []string{"10.0.0.1"}, error(nil)
		set := func(to []string, err error) { mu.Lock(); hosts, failure = to, err; mu.Unlock() }
		f := follow(t, n, func(c *fleet.Config) {
			c.Lookup = func(_ context.Context, host string) ([]string, error) {
				mu.Lock()
				defer mu.Unlock()
				if host != "workers" {
					return nil, errors.New("another name")
				}
				return hosts, failure
			}
		}, "dns:///workers:7")
		until(t, f, connected(1))
		set([]string{"10.0.0.1", "10.0.0.2"}, nil)
		until(t, f, connected(2))
		set(nil, errors.New("name server down"))
		time.Sleep(30 * time.Millisecond)
		require.True(t, connected(2)(f.Snapshot()), "a name server that is down takes no worker down")
		set([]string{"10.0.0.2"}, nil)
		s := until(t, f, func(s *fleet.Snapshot) bool { return len(s.Members) == 1 })
		require.Equal(t, "10.0.0.2:7", s.Members[0].Address)
	})
}

func TestUnresolvedNameIsAMemberWithAProblem(t *testing.T) {
	for name, failing := range map[string]func() ([]string, error){
		"an error":   func() ([]string, error) { return nil, errors.New("no such host") },
		"no address": func() ([]string, error) { return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rpctest.NoLeaks(t)
				n := workertest.NewNet()
				n.Start(t, "10.0.0.1:7", workertest.New("w1", "i", "m"))
				var known atomic.Bool
				f := follow(t, n, func(c *fleet.Config) {
					c.Lookup = func(context.Context, string) ([]string, error) {
						if known.Load() {
							return []string{"10.0.0.1"}, nil
						}
						return failing()
					}
				}, "dns:///workers:7")
				s := until(t, f, func(s *fleet.Snapshot) bool { return s.Route.Known && len(s.Members) == 1 })
				require.Equal(t, s.Members[0].Problem, f.Members()[0].Problem)
				require.False(t, s.Members[0].Connected)
				require.Equal(t, "dns:///workers:7", s.Members[0].Address)
				require.Contains(t, s.Members[0].Problem, `worker name not resolved: "workers" (`)
				require.Contains(t, s.Members[0].Problem, "check its spelling in --workers")
				known.Store(true)
				s = until(t, f, connected(1))
				require.Len(t, s.Members, 1)
				require.Equal(t, "10.0.0.1:7", s.Members[0].Address)
			})
		})
	}
}

func TestUnresolvedAddressNamesItsHost(t *testing.T) {
	for name, tc := range map[string]struct {
		says  func(resolver.ClientConn) error // instead of this machine's name server
		cause string
	}{
		"nobody has it": {func(cc resolver.ClientConn) error { return cc.UpdateState(resolver.State{}) }, "produced zero addresses"},
		"the name server is down": {func(cc resolver.ClientConn) error {
			cc.ReportError(errors.New("dns: A record lookup error: server misbehaving"))
			return nil
		}, "server misbehaving"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rpctest.NoLeaks(t)
				f := follow(t, nil, func(c *fleet.Config) {
					c.Dial = func(address string) (*grpc.ClientConn, error) {
						names := manual.NewBuilderWithScheme("dns")
						names.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) { _ = tc.says(cc) }
						return rpc.Dial(address, "test", grpc.WithResolvers(names))
					}
				}, "gpu7.invalid:7071")
				s := until(t, f, func(s *fleet.Snapshot) bool { return len(s.Members) == 1 && s.Members[0].Problem != "" })
				require.Contains(t, s.Members[0].Problem, `worker name not resolved: "gpu7.invalid" (`+tc.cause+")")
				require.Contains(t, s.Members[0].Problem, "check its spelling in --workers")
			})
		})
	}
}
