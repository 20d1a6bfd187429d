package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// resolve looks up a name repeatedly and follows its addresses.
func (f *Fleet) resolve(ctx context.Context, target, host, port string) {
	var interval lookupInterval
	for {
		lookup, cancel := context.WithTimeout(ctx, f.cfg.Resolve)
		hosts, err := f.cfg.Lookup(lookup, host)
		cancel()
		if err == nil && len(hosts) == 0 {
			err = errors.New("it has no address")
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			// Known workers stay, so that a name server that is down removes none.
			f.mu.Lock()
			before := f.mu.problems[target]
			if len(f.mu.addresses[target]) == 0 {
				f.mu.addresses[target], f.mu.problems[target] = []string{}, unresolved(host, err.Error()).Error()
			}
			logged := before != "" && before == f.mu.problems[target]
			f.mu.Unlock()
			if !logged {
				f.logger.Warn("name not resolved", "name", host, "error", err)
			}
			f.publishSoon()
		default:
			addresses := make([]string, len(hosts))
			for i, h := range hosts {
				addresses[i] = net.JoinHostPort(h, port)
			}
			f.follow(ctx, target, addresses)
		}
		if !sleep(ctx, interval.next(hosts, err, time.Now(), f.cfg.Resolve)) {
			return
		}
	}
}

// A worker that restarts is usually back at once, and is not found before its name is looked up
// again. So a name that has lost an address is looked up fastLookups times as often, for
// fastIntervals usual intervals.
const (
	fastLookups   = 5
	fastIntervals = 12
)

// lookupInterval is the time between look-ups of a name. It is pure.
type lookupInterval struct {
	last  []string  // the addresses of the last look-up
	until time.Time // when fast look-ups end
}

// next returns the time to the next look-up after one that returned hosts or err.
func (l *lookupInterval) next(hosts []string, err error, now time.Time, usual time.Duration) time.Duration {
	if err == nil {
		if slices.ContainsFunc(l.last, func(h string) bool { return !slices.Contains(hosts, h) }) {
			l.until = now.Add(fastIntervals * usual)
		}
		l.last = hosts
	}
	if now.Before(l.until) {
		return usual / fastLookups
	}
	return usual
}

// unresolved returns the error of a name without an address.
func unresolved(host, cause string) error {
	return fmt.Errorf("%w: %q (%s): check its spelling in --workers, and that the name server of this machine knows it",
		ErrName, host, cause)
}

// resolverPrefixes are the beginnings of gRPC's error text for a name that cannot be resolved: if a
// name server answers that it has no address, and if none answers.
var resolverPrefixes = []string{"name resolver error: ", "dns: A record lookup error: "}

// nameError adds the name to the error of a dial that failed to resolve it. gRPC's own text does
// not have it.
func nameError(address string, err error) error {
	host, _, split := net.SplitHostPort(address)
	if split != nil || status.Code(err) != codes.Unavailable {
		return err
	}
	for _, prefix := range resolverPrefixes {
		if cause, found := strings.CutPrefix(reason(err), prefix); found {
			return unresolved(host, cause)
		}
	}
	return err
}

// unresolvedLocked returns a member for each configured name without an address.
func (f *Fleet) unresolvedLocked() []Member {
	var out []Member
	for target, problem := range f.mu.problems {
		out = append(out, Member{Address: target, Problem: problem, Load: &route.Load{}})
	}
	return out
}
