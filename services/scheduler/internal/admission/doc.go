// Package admission leases slots on workers to the attempts of calls. It is the scheduler's
// admission control: a worker never holds much more than it can compute, and everything else waits
// here, in order, or is refused early.
//
//	relay             Admission            modelQueue (pure core: queue)        fleet, route
//	  | Place(request) |                      |                                     |
//	  |--------------->| waiters of equal rank?                                     |
//	  |                |-- no: acquire ------------------------- Pick, reserve ---->|
//	  |<-- Lease ------|                      |                                     |
//	  |                |-- no slot: push ---->| shed the request, or queue it       |
//	  |                |                      |                                     |
//	  |                |<-- a lease ended, or a new snapshot ----------------------|
//	  |                |-- dispatch --------->| in order: acquire, overtake, refuse |
//	  |<-- Lease ------|<-- grant ------------|                                     |
//	  |   ... frames: Progress ...            |                                     |
//	  |-- Vacate, End->|-- settle, dispatch ->|                                     |
//
// Each model has one queue. Its order is priority, then start-time fair queueing between the
// tenants, by tokens (package fairqueue), then age. A stream that resumes goes before all others,
// because its caller is in the middle of an answer. Binding is late: a request has no worker until
// a slot is free, so a slow worker delays no request that another one could serve
// (docs/decisions/025).
//
// A queue is bounded and sheds load early. It refuses a newcomer if the queue is full, or if by the
// measured drain rate its first token would come after its deadline. It refuses a waiter if a more
// urgent newcomer displaces it, or if it has waited for the longest time allowed. Every refusal
// says when to retry.
//
// No timer polls. The end of a lease and a new snapshot of the fleet dispatch to as many waiters as
// there are slots, and wake no other. Admission holds no request's bytes: the server counts these
// in its own budget while they wait.
package admission
