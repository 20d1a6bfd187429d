// Package generate turns a request into text. Run submits the continuations of one Generate call to
// a step loop, decodes their tokens, matches stop strings and reports to a Sink. It blocks until
// every continuation has ended.
//
// The text that a continuation delivers with k tokens depends on those tokens and the stop strings
// alone. That makes exact failover possible: another worker replays the tokens (Resume) and
// continues with the same text. Text that may be the start of a stop string is held back until the
// next tokens decide it.
//
// The package handles tokens and text. It has no knowledge of calls, messages or model files.
package generate
