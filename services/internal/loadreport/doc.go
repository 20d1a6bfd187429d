// Package loadreport reports a server's load to load balancers in the format of ORCA (gRFC A51): in
// the trailer of each generation, and by a stream.
//
// A Reporter reads the load of its server when a report is requested, a few times a second at most,
// and counts generations itself. Options and Register install it on a server. Each generation calls
// End when it ends.
//
// The package knows no model and no worker: the server provides the Load.
package loadreport
