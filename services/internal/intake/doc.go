// Package intake watches what connections bring before a server has read it, so that it can be bounded.
//
// grpc-go receives a message whole before a handler sees it, tells nobody its length, and lets its sender send all of it as soon as the
// handler asks for it. A server of package rpc makes its connections with Credentials and its streams with Tap; FromContext then gives a
// handler the Arrival of its call, which knows how long the next message is before it is asked for, and whether it has come. Of a
// message that nobody has asked for no more arrives than a stream's flow-control window. Gate is the room for those that are
// larger: who receives one takes its bytes of the room first. Limit bounds the connections of one address, and those that are not
// yet HTTP/2.
//
// The package decodes nothing but the headers of frames and the prefixes of messages, has no logger and makes no status.
package intake
