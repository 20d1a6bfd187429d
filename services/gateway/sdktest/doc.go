// Package sdktest has the tests of the gateway whose client is a published SDK: OpenAI's, Anthropic's
// and a community's. It is a module of its own, because the SDKs take two minutes of a processor to
// compile: make test runs it once, and neither the race detector nor the linter compiles it.
package sdktest
