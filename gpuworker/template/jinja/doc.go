// Package jinja evaluates Jinja templates, without trusting them.
//
// Parse makes a Template from source text; Render evaluates it with variables and returns the text.
// The semantics are those of Jinja2 3.1 in the environment that model repositories write for:
// trim_blocks and lstrip_blocks, no escaping, immutable values, undefined names that print as
// nothing, break and continue, the generation tag, raise_exception and a tojson without HTML
// escapes. Numbers, text and containers behave and print as in Python. Anything else is refused by
// name instead of approximated.
//
// A rendered Text states which of its bytes the template wrote. Every string value carries the
// origin of its bytes (str), and every operation on strings passes it on; an operation that does
// not produces text of the caller. The text itself does not depend on origins.
//
// Limits bound a rendering: the bytes of every text, the total of items and rounds, and the depth
// of recursion. They bound neither time nor the sum of live memory, which the caller must bound.
// The same source and variables give the same text, because there is no clock, no randomness and no
// I/O.
//
// Each file has one subject: source text becomes tokens (lexer), tokens become a tree (parser,
// parse_*) whose nodes evaluate themselves (expression, statement, loop, macro). Values are Go's
// any (value, str). Their operations are in number, sequence, compare, attribute and method_*, and
// the names that a template can call are in filter_*, test and global.
package jinja
