package restart

import "time"

// ending is what became of a call.
type ending int

const (
	right   ending = iota // its prefix came from the cache
	wrong                 // another worker computed it
	refused               // no worker was asked: the scheduler does not know them yet
)

// attempt is one call after a restart.
type attempt struct {
	sent   time.Duration // after the scheduler began to listen
	ending ending
}

// Round is what one restart gave. Times are since the scheduler listened.
type Round struct {
	Listened   float64 `json:"listened_ms"`    // after the program was started
	FirstRight float64 `json:"first_right_ms"` // when the first call was sent that was right
	AllRight   float64 `json:"all_right_ms"`   // when the first was sent from which on all were right
	Calls      int     `json:"calls"`
	Wrong      int     `json:"wrong"`
	Refused    int     `json:"refused"`
	// RightSoon and RightLater are shares of the calls that a worker answered: of those sent before the bar, and behind it.
	RightSoon  float64 `json:"right_soon"`
	RightLater float64 `json:"right_later"`
}

// sum sums up attempts, in the order in which they were sent. There is none that was right where FirstRight is negative, and the
// last was not where AllRight is.
func sum(listened time.Duration, attempts []attempt) Round {
	r := Round{Listened: ms(listened), FirstRight: -1, AllRight: -1, Calls: len(attempts)}
	var right, answered [2]int // before and behind the bar
	for _, a := range attempts {
		half := 0
		if a.sent >= bar {
			half = 1
		}
		switch a.ending {
		case refused:
			r.Refused++
		case wrong:
			r.Wrong++
			answered[half]++
		default:
			answered[half]++
			right[half]++
			if r.FirstRight < 0 {
				r.FirstRight = ms(a.sent)
			}
		}
		switch {
		case a.ending != 0:
			r.AllRight = -1
		case r.AllRight < 0:
			r.AllRight = ms(a.sent)
		}
	}
	share := func(i int) float64 { return float64(right[i]) / float64(max(answered[i], 1)) }
	r.RightSoon, r.RightLater = share(0), share(1)
	return r
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
