// Package faults injects faults into a fleet under load and compares every stream, bit by bit, with
// the same request on the undisturbed fleet.
//
//	truth        every request once, undisturbed
//	stage        streams stay open  ──>  a fault at a busy member  ──>  the member is restored
//	comparison   each stream with its truth; each pause with the same resume on the idle fleet
//
// A driver injects the faults. RunProcesses starts the shipped programs on this host, workers
// behind proxies that can partition them; RunContainers takes a Compose project that is up. Both
// use the same client, the same comparison (Transcript.Same) and the same Stage, whose err lists
// the violations.
//
// Requests, victims and the order of faults are functions of a seed; which streams a fault meets is
// not. The package sees a fleet only through its public services. It does not know how a stream is
// continued: the evidence is a stream that gets tokens while its worker cannot send.
package faults
