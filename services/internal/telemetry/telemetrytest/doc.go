// Package telemetrytest is a collector that speaks OTLP over gRPC, for tests of what programs send.
package telemetrytest
