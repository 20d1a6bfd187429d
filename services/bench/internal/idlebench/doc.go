// Package idlebench measures what a scheduler spends on following a fleet that nobody asks for anything: processor time and memory
// by the number of workers.
//
// Workers are the shipped program on the sim engine with a model loaded; the scheduler has its default flags, by which it wants a
// message of each worker every 250 ms. For each size a scheduler is started over that many of them, left alone until it knows
// all, and watched. Run starts the programs and stops them.
package idlebench
