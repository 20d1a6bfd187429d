// Package render writes values as text for people: sizes, rates, times, bars, tables, and text that a terminal may be
// shown.
//
// Every function is pure. The package knows no terminal: callers decide whether control characters are wanted, and only
// Redraw makes any.
package render
