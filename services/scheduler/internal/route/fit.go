package route

// fit is how well a worker's free slots and memory match a request, the best first.
type fit uint8

const (
	fitFree           fit = iota // it has free slots and memory
	fitOversubscribed            // its slots are in use, and a few more sequences may be on the way to it
	fitResume                    // only a stream that resumes may go there
	fitTooLarge                  // it has room, but fewer slots than the request needs, or too little memory
	fitFull
)

// oversubscription returns how many sequences beyond its slots a worker is given. They wait on the
// worker, so that a slot that becomes free is used at once, and not a report and a round trip
// later.
func oversubscription(slots int64) int64 { return max(slots/16, 1) }

// resumeReserve is the same for streams that resume. When a worker is lost, the others accept that
// many of its streams at once; the rest is first in the queue.
func resumeReserve(slots int64) int64 { return max(slots/8, 2) }

// slotsFor returns how many slots a request takes.
func (e *entry) slotsFor(r *Request) int64 {
	if e.slots > 0 {
		return min(r.Sequences, e.slots)
	}
	return r.Sequences
}

// fitOf returns the fit of a request, of whose prompt cached tokens are cached on the worker.
func (e *entry) fitOf(r *Request, cached int64) fit {
	if r.MaxInFlight > 0 && e.worker.InFlight() >= r.MaxInFlight {
		return fitFull
	}
	slots := e.slots
	if r.Sequences == 0 || slots == 0 {
		return fitFree
	}
	own, foreign, busy := e.load.Sequences(), e.load.Foreign(), e.load.Busy()
	after := busy + e.slotsFor(r)
	most := slots
	// A scheduler that has more sequences there than all others does not oversubscribe: it leaves
	// slots that become free to the others, so that in the end they share them equally.
	if foreign == 0 || own <= foreign {
		most += oversubscription(slots)
	}
	switch memory := e.hasMemory(r, cached, busy); {
	case memory && after <= slots:
		return fitFree
	case memory && after <= most:
		return fitOversubscribed
	case memory && r.Resumes && after <= slots+resumeReserve(slots):
		return fitResume
	case busy < most:
		return fitTooLarge
	}
	return fitFull
}

// limit returns how many sequences a worker may have with a request of a fit; 0: no bound.
func (e *entry) limit(f fit) int64 {
	switch {
	case e.slots == 0 || f == fitFree:
		return e.slots
	case f == fitOversubscribed:
		return e.slots + oversubscription(e.slots)
	}
	return e.slots + resumeReserve(e.slots)
}

// hasMemory reports whether the KV cache has memory for the prompt, in addition to the prompts that
// are on their way. It is true for a prompt longer than the whole cache, and for any prompt if the
// worker is idle: the worker then refuses it with exact numbers.
func (e *entry) hasMemory(r *Request, cached, sequences int64) bool {
	if e.cache == 0 || sequences == 0 || r.Prompt > e.cache {
		return true
	}
	return max(r.Prompt-cached, 0) <= e.model.FreeTokens-e.load.prefill.own.Load()
}
