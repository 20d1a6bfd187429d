// Package suites runs the SDKs' own tests against a gateway. Those that are expected to fail are
// listed with their reasons, and the list may only shrink.
package suites
