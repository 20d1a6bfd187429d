// Package telemetrytest is an OTLP collector over gRPC for tests of exported telemetry.
package telemetrytest
