// Package telemetry sends traces, and measures by the conventions for generative AI, to a collector that speaks OTLP, as the standard
// environment variables of OpenTelemetry say.
//
// FromEnvironment reads what this package decides by: whether there is anything to send, and by which protocol. Nothing is where none
// of these variables is set: no provider is made then, and what would tell it something finds nil. Open makes what is wanted, and
// Close sends what is left. Where to send to, how many spans and how often are variables that the libraries of OpenTelemetry read.
//
// Package rpc makes the spans of calls, those who know what a call waits for the spans within; Attributes and Generations are what
// these say of a generation in the words of the conventions. No text of a prompt or an answer is in any of them.
package telemetry
