// Package chaos kills, freezes and cuts off workers, and kills schedulers, under streams that must not notice: every token
// that a client gets is compared, bit by bit, with an undisturbed run of the same request.
//
// Run starts the shipped programs as plain processes, workers behind proxies that can hold their bytes, two schedulers over
// them, and keeps so many streams open. What the clients saw is judged by pure parts: a Transcript is what a stream gave
// however it was cut into events and attempts, interruptions finds in its arrivals where a fault met it, and Stage.Err says
// which promise was broken. The requests, the choice of workers and the order of faults come from one seed; what exactly a
// fault meets does not.
//
// It refuses to know how streams are continued: a worker that is gone and a stream that goes on is all the evidence there is.
package chaos
