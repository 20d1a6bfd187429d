package health

import "time"

// Look is a worker's judgement of itself, with what it was judged by. It does not change once it is made.
type Look struct {
	Input
	State  State
	Checks []Check
	At     time.Time
}
