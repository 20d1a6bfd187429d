package chaos

import (
	"fmt"
	"slices"
	"time"
)

// Kind is how a program is hurt.
type Kind string

// Kinds of faults.
const (
	Kill   Kind = "kill"   // SIGKILL; started again a while later
	Freeze Kind = "freeze" // SIGSTOP; thawed a while later
	Cut    Kind = "cut"    // its bytes are held both ways, and its connections stay open; healed a while later
)

// Kinds are all kinds.
var Kinds = []Kind{Kill, Freeze, Cut}

// gapAllowed is how long a stream may pause because of a fault, beside what its continuation takes undisturbed. The silence of a
// worker that is frozen or cut off must be noticed first.
var gapAllowed = map[Kind]time.Duration{Kill: time.Second, Freeze: 3 * time.Second, Cut: 3 * time.Second}

// ParseKinds reads names of kinds.
func ParseKinds(names []string) ([]Kind, error) {
	var kinds []Kind
	for _, name := range names {
		if !slices.Contains(Kinds, Kind(name)) {
			return nil, fmt.Errorf("fault %q: want %v", name, Kinds)
		}
		if !slices.Contains(kinds, Kind(name)) {
			kinds = append(kinds, Kind(name))
		}
	}
	return kinds, nil
}

// Fault is one that was made.
type Fault struct {
	Kind Kind          `json:"kind"`
	Node string        `json:"node"`
	At   time.Duration `json:"at_ns"`     // since the stage began
	Over time.Duration `json:"over_ns"`   // when the program was let go on, or started again
	Busy uint32        `json:"sequences"` // that it had
}
