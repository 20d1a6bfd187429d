// Package ingress bounds what clients send before a server reads it.
//
// grpc-go receives a message whole before a handler sees it. It reports no length in advance, and
// its sender may send all of it as soon as the handler calls RecvMsg. This package therefore parses
// the frame headers of HTTP/2 (RFC 9113) and the length prefixes of gRPC messages while grpc-go
// reads the connection.
//
// A server makes its connections with Credentials and its streams with Tap. FromContext returns the
// Stream of a call, which reports the length of the next message before it is received, and whether
// it has arrived. At most one flow-control window, 64 KiB, of a message arrives before the handler
// asks for it. Budget bounds the bytes of larger messages that are received or sent at the same
// time. Limit bounds the connections of one address and the connections that have not sent an
// HTTP/2 frame yet.
//
// The package decodes nothing else, logs nothing and makes no status.
package ingress
