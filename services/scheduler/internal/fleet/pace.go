package fleet

import (
	"slices"
	"time"
)

// A worker that is started again mostly comes back at once, and is not known before its name is looked up: one that has lost an
// address is looked up quickly times as often, for searching times the usual time.
const (
	quickly   = 5
	searching = 12
)

// pace is how often a name is looked up. It is pure.
type pace struct {
	had   []string
	until time.Time // when nobody is waited for any more
}

// next takes what a look-up found, and gives the time to the next one.
func (p *pace) next(hosts []string, err error, now time.Time, usual time.Duration) time.Duration {
	if err == nil {
		if slices.ContainsFunc(p.had, func(h string) bool { return !slices.Contains(hosts, h) }) {
			p.until = now.Add(searching * usual)
		}
		p.had = hosts
	}
	if now.Before(p.until) {
		return usual / quickly
	}
	return usual
}
