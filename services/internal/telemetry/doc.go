// Package telemetry exports traces, and metrics by OpenTelemetry's conventions for generative AI,
// to an OTLP collector, as the standard environment variables of OpenTelemetry configure it.
//
// FromEnvironment reads whether there is anything to export, and by which protocol. If none of the
// variables is set, no provider is made and recording does nothing. Open makes the exporters, and
// Close sends the rest. The libraries of OpenTelemetry read the variables for endpoints,
// sampling and intervals themselves.
//
// Package rpc starts the spans of calls, and the packages below it the child spans. Attributes and
// Generations describe a generation by the conventions. They contain no text of a prompt or a
// response.
package telemetry
