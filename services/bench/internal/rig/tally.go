package rig

import (
	"fmt"
	"time"
)

// tally is what came of the streams of one section.
type tally struct {
	streams   int
	resumed   int            // of them begun on one scheduler and continued in the middle on another
	why       error          // the first of these had to
	moved     map[string]int // streams that left a scheduler, by its name
	failed    []string       // why, one each
	different []string       // how, one each
	longest   time.Duration  // between two events of one stream
}

// err is nil if no stream failed and none differs.
func (t *tally) err() error {
	switch {
	case len(t.failed) > 0:
		return fmt.Errorf("%d of %d streams failed, the first so: %s", len(t.failed), t.streams, t.failed[0])
	case len(t.different) > 0:
		return fmt.Errorf("%d of %d streams differ, the first so: %s", len(t.different), t.streams, t.different[0])
	case t.streams == 0:
		return fmt.Errorf("no stream came to its end")
	}
	return nil
}

// String is one line of figures.
func (t *tally) String() string {
	text := fmt.Sprintf("%d streams, none failed, all equal, longest gap %s", t.streams, seconds(t.longest))
	if t.resumed > 0 {
		text += fmt.Sprintf(", %d resumed by their clients, the first after %q", t.resumed, t.why)
	}
	return text
}

// seconds is a time as people read it.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
