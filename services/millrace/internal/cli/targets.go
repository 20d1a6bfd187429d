package cli

import (
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/millrace/millrace/services/internal/rpc"
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
			return nil, usagef("--target %q: an address is empty: separate addresses by single commas", a.target)
		case len(all) > 1 && strings.Contains(all[i], "://") && !strings.HasPrefix(all[i], "unix:"):
			return nil, usagef("--target: %s stands for several servers itself: give it alone", all[i])
		}
	}
	return all, nil
}

// others returns how many servers beside the one in use --target names.
func (a *app) others() int { return strings.Count(a.target, ",") }

// connect makes a connection to the first of some servers that answers; when that one is lost, the next call goes to the next.
func connect(targets []string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	target := targets[0]
	if len(targets) > 1 {
		list := manual.NewBuilderWithScheme(targetsScheme)
		var state resolver.State
		for _, t := range targets {
			host, _, err := net.SplitHostPort(t)
			if err != nil && !strings.HasPrefix(t, "unix:") {
				return nil, fmt.Errorf("%q: want host:port or unix:PATH", t)
			}
			// Each server's certificate is checked against its own name.
			state.Addresses = append(state.Addresses, resolver.Address{Addr: t, ServerName: host})
		}
		list.InitialState(state)
		target = targetsScheme + ":///" + targets[0]
		options = append(options, grpc.WithResolvers(list))
	}
	conn, err := rpc.Dial(target, program, options...)
	if err != nil {
		return nil, fmt.Errorf("%w", err)
	}
	return conn, nil
}
