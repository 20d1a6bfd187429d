// Package jinja renders templates of the Jinja2 language as chat templates use it.
//
// Parse makes a Template from source text; Render evaluates it with variables and returns the text. The meaning is that of
// Jinja2 3.1 in the environment that model repositories are written for: trim_blocks and lstrip_blocks, no escaping, values
// that cannot be changed, undefined names that print as nothing, break and continue, the generation tag, raise_exception
// and a tojson without HTML escapes. Numbers, text and containers behave and print as Python's do. Whatever is not
// supported is refused with its name and its line; nothing is guessed.
//
// A rendered Text says which of its bytes the template wrote. Every string value carries the origin of its bytes (str), and
// every operation on strings passes it on; an operation that does not gives text from the caller. The text itself does not
// depend on origins.
//
// A rendering is bounded by Limits: the bytes of every text, the items and rounds altogether, the depth of recursion.
// What a limit cannot see is time and the sum of the memory alive, which the caller bounds. The same source and variables
// give the same text: there is no clock, no chance and no input or output.
//
// A file a noun: source text becomes tokens (lexer), tokens a tree (parser, parse_*), whose nodes evaluate themselves
// (expression, statement, loop, macro). Values are Go's any (value, str); what they can do is in number, sequence, compare,
// text, attribute, filter_*, test and method_*.
package jinja
