package load

import (
	"iter"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/services/bench/internal/trace"
)

// Arrival is a request of an open loop.
type Arrival struct {
	At   time.Duration // since the beginning
	Size Size
}

// Poisson gives arrivals of one size at a mean rate a second, with exponential gaps, until the duration has passed (0:
// for ever) or count arrivals are given (0: any number). The same seed gives the same times.
func Poisson(rate float64, size Size, seed uint64, duration time.Duration, count int) iter.Seq[Arrival] {
	return func(yield func(Arrival) bool) {
		r := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
		at := 0.0 // seconds
		for n := 0; count == 0 || n < count; n++ {
			at += r.ExpFloat64() / rate
			when := time.Duration(at * 1e9)
			if duration > 0 && when >= duration || !yield(Arrival{At: when, Size: size}) {
				return
			}
		}
	}
}

// Periodic gives arrivals of one size, the first after one period, for ever.
func Periodic(every time.Duration, size Size) iter.Seq[Arrival] {
	return func(yield func(Arrival) bool) {
		for at := every; yield(Arrival{At: at, Size: size}); at += every {
		}
	}
}

// Replay gives the arrivals of a trace. Sequences longer than limit tokens (0: none is) lose the surplus: the output
// keeps at least one token and up to half of the limit, the rest is the prompt's.
func Replay(requests []trace.Request, limit int) iter.Seq[Arrival] {
	return func(yield func(Arrival) bool) {
		for _, r := range requests {
			if !yield(Arrival{At: r.At, Size: Fit(Size{Prompt: r.Prompt, Output: r.Output}, limit)}) {
				return
			}
		}
	}
}

// Shortened counts the requests of a trace that Replay would cut.
func Shortened(requests []trace.Request, limit int) (n int) {
	for _, r := range requests {
		if size := (Size{Prompt: r.Prompt, Output: r.Output}); Fit(size, limit) != size {
			n++
		}
	}
	return n
}

// Fit cuts a size down to limit tokens; see Replay.
func Fit(s Size, limit int) Size {
	if limit <= 0 || s.Prompt+s.Output <= limit {
		return s
	}
	s.Output = min(s.Output, max(limit/2, limit-s.Prompt))
	s.Prompt = min(s.Prompt, limit-s.Output)
	return s
}
