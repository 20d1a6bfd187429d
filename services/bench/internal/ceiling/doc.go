// Package ceiling measures the load generator itself: a server in this very process answers its calls with tokens as
// fast as they can be sent, over the same kind of socket, and what arrives is the most that the generator could ever
// report. Server and generator share the machine, so the truth may be higher, never lower.
package ceiling
