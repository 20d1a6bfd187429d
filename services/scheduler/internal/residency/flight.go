package residency

import (
	"fmt"
	"strings"
	"sync/atomic"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// key names a model to load, with a digest unless that is empty.
type key struct{ model, digest string }

// Flight implements ondemand.Key: a request waits for a load of its model under way, whatever the
// digest, because workers serve one digest under a name.
func (k key) Flight() string { return k.model }

// followed is a load whose events are read to their end.
type followed struct {
	load Load
	id   string // of the request that it was started for
	last atomic.Pointer[pb.LoadModelResponse]
}

// Wait implements ondemand.Load.
func (f *followed) Wait() error {
	for event := range f.load.Events() {
		f.last.Store(event)
	}
	return f.load.Err()
}

// stage describes how far the load is.
func (f *followed) stage() string {
	event := f.last.Load()
	p := event.GetProgress()
	if p == nil {
		return "just requested"
	}
	text := strings.ToLower(strings.TrimPrefix(p.GetState().String(), "LOAD_STATE_")) + " on " + event.GetWorkerId()
	if p.GetBytesTotal() > 0 {
		text += fmt.Sprintf(", %d of %d bytes", p.GetBytesDone(), p.GetBytesTotal())
	}
	return text
}
