// Package restart measures how soon a scheduler that was killed routes as before: workers on the sim engine hold prefixes, each of
// which one worker has, and the scheduler started anew is asked for one after another, each once, from the moment that it listens.
//
// A call is right when the answer begins with its cached prefix. Refusals before the scheduler knows its workers are counted, and
// are not right. Run starts the shipped programs and stops them.
package restart
