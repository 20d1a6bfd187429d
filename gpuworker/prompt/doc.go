// Package prompt turns a caller's input into a generate.Request. It is the one place where a
// conversation becomes text, text becomes token ids, unset options get their defaults and a prompt
// is found too long.
//
// A caller describes the model once (Model), fills an Input and Options, starting from Defaults,
// and calls Build. Callers that need only ids use the same functions to render and encode. All
// functions may be called from many goroutines at once.
//
// The package handles texts, ids and parameters. It has no knowledge of messages, statuses or
// loading. The caller checks ranges of values, with the numbers of its own API.
package prompt
