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

// nameError is a dial's error with the name in it if the name was what failed: gRPC's own text does not tell it.
func nameError(address string, err error) error {
	host, _, split := net.SplitHostPort(address)
	cause, found := strings.CutPrefix(reason(err), "name resolver error: ")
	if split != nil || !found || status.Code(err) != codes.Unavailable {
		return err
	}
	return unresolved(host, cause)
}

// unnamedLocked are the members that stand for configured names without any address, one each.
func (f *Fleet) unnamedLocked() []Member {
	var out []Member
	for entry, problem := range f.problems {
		out = append(out, Member{Address: entry, Problem: problem, Load: &route.Load{}})
	}
	return out
}
