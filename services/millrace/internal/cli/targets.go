package cli

import (
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/failure"
)

// targetsScheme is the scheme of a --target that lists several servers.
const targetsScheme = "millrace"

// targets returns the servers of --target, at least one. A name that DNS resolves, or a control plane, stands alone: its addresses
// are a list already.
func (a *app) targets() ([]string, error) {
	all := strings.Split(a.target, ",")
	for i, t := range all {
		all[i] = strings.TrimSpace(t)
		switch {
		case all[i] == "" && len(all) > 1:
			return nil, failure.Usagef("--target %q: an address is empty: separate addresses by single commas", a.target)
		case len(all) > 1 && strings.Contains(all[i], "://") && !strings.HasPrefix(all[i], "unix:"):
			return nil, failure.Usagef("--target: %s names several servers itself: give it alone", all[i])
		}
	}
	return all, nil
}

// connect makes a connection to the first of some servers that answers. When that server is lost, the
// next call goes to the next server. leave closes the connection to the server in use, so that calls go to
// another one: a server that drains refuses calls and keeps its connection. leave is nil for one server.
// It must not be called concurrently.
func connect(targets []string, options ...grpc.DialOption) (conn *grpc.ClientConn, leave func(), err error) {
	target := targets[0]
	if len(targets) > 1 {
		list := manual.NewBuilderWithScheme(targetsScheme)
		var all []resolver.Address
		for _, t := range targets {
			host, _, err := net.SplitHostPort(t)
			if err != nil && !strings.HasPrefix(t, "unix:") {
				return nil, nil, fmt.Errorf("%q: want host:port or unix:PATH", t)
			}
			// Each server's certificate is checked against its own name.
			all = append(all, resolver.Address{Addr: t, ServerName: host})
		}
		list.InitialState(resolver.State{Addresses: all})
		leave = func() {
			all = append(all[1:len(all):len(all)], all[0])
			// Without its address the first server's connection is dropped.
			list.UpdateState(resolver.State{Addresses: all[:len(all)-1]})
			list.UpdateState(resolver.State{Addresses: all})
		}
		target = targetsScheme + ":///" + targets[0]
		options = append(options, grpc.WithResolvers(list))
	}
	conn, err = rpc.Dial(target, program, options...)
	if err != nil {
		return nil, nil, fmt.Errorf("%w", err)
	}
	return conn, leave, nil
}
