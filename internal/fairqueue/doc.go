// Package fairqueue orders waiting items by priority, then by fair share among tenants, then by
// age.
//
// The tenants of one priority are served by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM
// 1996): each has a virtual time that grows with the tokens it was charged, and the one with the
// least comes first. A tenant that was idle starts at the present virtual time of its priority, so
// unused share does not accumulate.
//
//	Push -> [priority 5: tenant a | tenant b] -> Next, Remove -> Charge (and Refund)
//	        [priority 0: tenant a | tenant c]
//
// Next returns the item to serve and Remove removes it. Charge records its cost in tokens, at once
// or in parts while it is served, and Refund returns an excess charge. A caller that removes
// several items in a row must charge each before it calls Next again, or one tenant gets them all.
//
// Memory is bounded: tenants without waiting items are forgotten when their virtual time no longer
// differs from a new tenant's, and beyond a bound those charged longest ago.
//
// A Queue has no clock, goroutine or random number, so the same calls give the same order. It is
// not safe for concurrent use.
package fairqueue
