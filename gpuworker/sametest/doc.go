// Package sametest is the promise of sameness as a property: the same request gives the same bits, whatever happens around it.
//
// Run draws scenarios from seeds. A scenario is one step loop over a real runner and a handful of requests that come, wait, are
// cancelled, share prefixes, lose their places, continue old answers and are resumed in the middle. Each request is also computed
// alone, by a driver that knows no loop: one sequence, its whole prompt in one segment, one token a step. Tokens, ranks, candidates
// and the bits of every logprob must be those of the driver. Counters say how often each thing happened, and the run fails if one
// that was demanded never did: a property that was not put to the test proves nothing.
//
// Every engine that promises sameness runs it, the step loop with it. A failure names its seed, which draws the same scenario
// again. It refuses to know any particular engine, text, and time: nothing here is measured.
package sametest
