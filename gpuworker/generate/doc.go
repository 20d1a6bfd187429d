// Package generate turns a request into text: it runs the sequences of one Generate call on a step loop, decodes their
// tokens, looks for stop strings and tells a Sink what happens.
//
// Run blocks until every continuation has ended. What a continuation delivers after k tokens is a function of those
// tokens and the stop strings alone. It knows tokens and text; it refuses to know calls, messages and models' files.
package generate
