package route

// room is how a worker stands to the places that a request needs, the best first.
type room uint8

const (
	free  room = iota // it has places for it, and memory
	spare             // its places are taken, and it may have some more on the way
	over              // a request that resumes may go there all the same
	tight             // it has a place, and not as many as are needed, or too little memory
	none
)

// spareOf is how many sequences beyond its places a worker is given, so that a place that becomes free is taken at once and not a
// report and a round trip later: they wait on the worker itself.
func spareOf(places int64) int64 { return max(places/16, 1) }

// overOf is the same for requests that resume. When a worker is lost, the others take so many of its streams at once; they are the
// first in what waits for the rest.
func overOf(places int64) int64 { return max(places/8, 2) }

// needs is how many of a worker's places a request takes.
func (e *entry) needs(r *Request) int64 {
	if e.places > 0 {
		return min(r.Sequences, e.places)
	}
	return r.Sequences
}

// roomFor is how a worker stands to a request of whose prompt it has so many tokens.
func (e *entry) roomFor(r *Request, cached int64) room {
	if r.MaxInFlight > 0 && e.worker.InFlight() >= r.MaxInFlight {
		return none
	}
	places := e.places
	if r.Sequences == 0 || places == 0 {
		return free
	}
	own, foreign, now := e.load.Sequences(), e.load.Foreign(), e.load.Busy()
	then := now + e.needs(r)
	most := places
	if foreign == 0 || own <= foreign { // who has more there than all others leaves them what becomes free: in the end they share alike
		most += spareOf(places)
	}
	switch fits := e.fits(r, cached, now); {
	case fits && then <= places:
		return free
	case fits && then <= most:
		return spare
	case fits && r.Resumes && then <= places+overOf(places):
		return over
	case now < most:
		return tight
	}
	return none
}

// most is how many sequences a worker may have so that a request has room of a kind; 0 is no bound.
func (e *entry) most(is room) int64 {
	places := e.places
	switch {
	case places == 0 || is == free:
		return places
	case is == spare:
		return places + spareOf(places)
	}
	return places + overOf(places)
}

// fits says whether the KV cache has memory for the prompt now, beside the prompts on their way. One that is longer than the whole
// cache fits: the worker refuses it with exact numbers; so does any on a worker that has nothing else.
func (e *entry) fits(r *Request, cached, sequences int64) bool {
	if e.cache == 0 || sequences == 0 || r.Prompt > e.cache {
		return true
	}
	return max(r.Prompt-cached, 0) <= e.model.FreeTokens-e.load.prefill.own.Load()
}
