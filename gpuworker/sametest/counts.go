package sametest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Counts say how often each thing happened, by its name.
type Counts struct {
	mu sync.Mutex
	of map[string]uint64
}

// Add counts n more of a thing; one that is counted 0 times is listed too.
func (c *Counts) Add(thing string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]uint64{}
	}
	c.of[thing] += n
}

// Of is how often a thing happened.
func (c *Counts) Of(thing string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[thing]
}

// Missing are those of some things that never happened.
func (c *Counts) Missing(things []string) []string {
	return slices.DeleteFunc(slices.Clone(things), func(thing string) bool { return c.Of(thing) > 0 })
}

// String has a line for each thing, by name.
func (c *Counts) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out strings.Builder
	for _, thing := range slices.Sorted(maps.Keys(c.of)) {
		fmt.Fprintf(&out, "%9d %s\n", c.of[thing], thing)
	}
	return out.String()
}
