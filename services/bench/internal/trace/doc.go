// Package trace reads recorded request arrivals, to be played again.
//
// Read takes the two formats in use: a CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens as Azure
// publishes it, and JSON lines with timestamp (ms), input_length, output_length and hash_ids as Mooncake does. Times become
// offsets from the first request. It knows lengths, times and which prompts begin alike; what they said is not in such
// files.
package trace
