// Package replay measures what routing by cached prefixes gains. It plays the same requests at the
// same times on freshly started workers, and sends them through one scheduler, through two, or by
// a rule of its own.
//
// A trace names the blocks of each prompt. Scale shortens the prompts made of them by one factor,
// and speeds up time, that of the workers included, by another. Calls start at the trace's times
// whether earlier ones have ended or not. Rules (rules.go) send calls to workers directly, with
// their own counts. The oracle keeps a book of each worker's cache (book.go), so that it knows
// immediately and exactly what schedulers learn from reports. Run starts the shipped programs. A
// failed call fails the run, and so do busy processors, because then times depend on processors
// and not on routing.
package replay
