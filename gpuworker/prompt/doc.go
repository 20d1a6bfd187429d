// Package prompt turns what a caller wants of a model into a generate.Request: the one place where a conversation becomes text,
// text becomes token ids, what is left open gets its default, and a prompt is found to be too long.
//
// A caller describes the model once (Model), fills an Input and Options, which Defaults begins, and calls Build. Whoever wants
// ids alone renders and encodes with the same functions. All of it may be called by many goroutines at once.
//
// It knows texts, ids and parameters. It refuses to know messages, statuses and how a model was loaded; ranges of values are
// the caller's to check, with the numbers of its own contract.
package prompt
