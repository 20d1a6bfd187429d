// Package protoflags makes command-line flags of the fields of a protobuf message.
//
// Register adds one flag for each field, named as the field with dashes, so that a server's complaint about
// "sampling.top_k" names the flag --top-k. A flag that is not given leaves its field unset: the server's default holds.
// Set sets one field by name, for commands typed in a conversation. Texts is the inverse: what Set takes for each field that is
// set, so that files can say how something was made.
//
// It handles numbers, booleans, strings, lists of ids, maps of numbers, and enums by their names without the prefix that all
// share; it knows no range: the server checks values.
package protoflags
