package template

import (
	"fmt"
	"time"
)

// Options are the limits of one template. A zero field means its default.
type Options struct {
	MaxSource int           // bytes of the template; 256 KiB
	MaxOutput int           // bytes of one rendered prompt, and of every intermediate text; 16 MiB
	MaxSteps  int           // loop rounds, calls and list items of one rendering; 1 000 000
	MaxMemory int64         // bytes beyond the child's initial ones; 256 MiB, at least 64 MiB
	Timeout   time.Duration // of parsing and of one rendering; 5 s
	Lazy      bool          // keep no process between New and the first rendering
	Slots     *Slots        `json:"-"` // shared with other templates; nil: slots of its own
}

const minMemory = 64 << 20

func (o Options) withDefaults() (Options, error) {
	if o.MaxSource < 0 || o.MaxOutput < 0 || o.MaxSteps < 0 || o.MaxMemory < 0 || o.Timeout < 0 {
		return o, fmt.Errorf("template limits must not be negative: %+v", o)
	}
	set(&o.MaxSource, 256<<10)
	set(&o.MaxOutput, 16<<20)
	set(&o.MaxSteps, 1_000_000)
	set(&o.MaxMemory, 256<<20)
	set(&o.Timeout, 5*time.Second)
	if o.MaxMemory < minMemory {
		return o, fmt.Errorf("template memory limit is %d bytes, want at least %d", o.MaxMemory, minMemory)
	}
	return o, nil
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
