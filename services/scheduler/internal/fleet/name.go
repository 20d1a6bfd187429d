package fleet

import (
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// unresolved says which name has no address, and what to do.
func unresolved(host, cause string) error {
	return fmt.Errorf("%w: %q (%s): check its spelling in --workers, and that the name server of this machine knows it",
		ErrName, host, cause)
}

// unnamed are the words before the cause in gRPC's text: where a name server says that there is no address, and where none says anything.
var unnamed = []string{"name resolver error: ", "dns: A record lookup error: "}

// nameError is a dial's error with the name in it if the name was what failed: gRPC's own text does not tell it.
func nameError(address string, err error) error {
	host, _, split := net.SplitHostPort(address)
	if split != nil || status.Code(err) != codes.Unavailable {
		return err
	}
	for _, words := range unnamed {
		if cause, found := strings.CutPrefix(reason(err), words); found {
			return unresolved(host, cause)
		}
	}
	return err
}

// unnamedLocked are the members that stand for configured names without any address, one each.
func (f *Fleet) unnamedLocked() []Member {
	var out []Member
	for entry, problem := range f.problems {
		out = append(out, Member{Address: entry, Problem: problem, Load: &route.Load{}})
	}
	return out
}
