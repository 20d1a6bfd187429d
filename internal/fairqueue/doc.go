// Package fairqueue orders what waits: by priority, then so that tenants share alike, then by age.
//
// Next shows who is to be served and Remove takes it out; Charge says what serving it costs, in tokens, all at once or little by
// little while it is being served, and Refund what of that it did not cost after all. Who takes out several in one go charges each before it looks for the next, or one tenant gets
// them all: what is not charged yet is not known.
//
// Among the tenants of one priority the one that was charged least comes first: start-time fair queuing, with a virtual time for
// each priority. Who comes back from doing nothing begins at the present virtual time: what was not used is not saved up. What a
// queue remembers is bounded by who waits and who was charged lately.
//
// A Queue is pure: no clock, no goroutine, no random number, so that the same calls give the same order. One goroutine owns it.
package fairqueue
