// Package ondemand loads what requests want and no worker serves: each thing once, for all requests
// that want it.
//
// A Group starts one load for a key and lets every request that joins wait for its end (single
// flight, as in golang.org/x/sync/singleflight). Other than there, a load outlives the requests that
// wait for it, and a failure is remembered: requests that come before the next attempt is due get it
// at once. The pause grows with each failure, unless the worker has said when to come back.
//
//	request -> refused -> Join -> Flight.Wait -> placed
//	                        \-> start, if no load of the key is under way -> Load.Wait
//
// The package knows neither models nor codebooks. One load happens in this process; if two schedulers
// choose the same worker, that worker joins their loads.
package ondemand
