// Command millrace-gateway serves the HTTP APIs that most clients of language models speak, and
// calls schedulers or workers over gRPC. It keeps nothing, so any number of gateways may run.
//
//	client --HTTP--> httpapi --> a dialect, such as openai --> target --gRPC--> scheduler or worker
//
// Package httpapi is what all dialects share: limits, errors, streams, the life of a request.
// Package strictjson decodes bodies. Package target makes calls.
package main
