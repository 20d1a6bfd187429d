// Package knobs makes command-line flags of the fields of a protobuf message.
//
// Register adds one flag for each field, named as the field with dashes, so that a server's complaint about
// "sampling.top_k" names the flag --top-k. A flag that is not given leaves its field unset: the server's default holds.
// Set sets one field by name, for commands typed in a conversation.
//
// It handles numbers, booleans, strings, lists of ids and maps of numbers; it knows no range: the server checks values.
package knobs
