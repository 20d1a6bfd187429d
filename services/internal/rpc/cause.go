package rpc

import (
	"strconv"
	"strings"
)

// ConnectionError returns the cause inside the message that grpc-go gives to a connection that could not be made:
//
//	connection error: desc = "transport: ...: dial tcp 10.0.0.7:7071: connect: connection refused"
//
// becomes "dial tcp 10.0.0.7:7071: connect: connection refused". It reports false for any other message.
func ConnectionError(message string) (cause string, is bool) {
	quoted, is := strings.CutPrefix(message, "connection error: desc = ")
	if !is {
		return "", false
	}
	cause, err := strconv.Unquote(quoted)
	if err != nil { // the message was clipped
		cause = strings.Trim(quoted, `"`)
	}
	cause = strings.TrimPrefix(cause, "transport: ")
	if _, dial, found := strings.Cut(cause, ": dial "); found {
		cause = "dial " + dial
	}
	return cause, true
}
