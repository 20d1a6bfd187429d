// Package receivebench sends a server far more bytes of requests at once than it has memory for, and looks for what becomes of them.
//
// Run starts a worker on the sim engine and a scheduler over it, each with a bound of the memory that it may ask the system for, and
// asks each of them in turn: all large requests begin at once, over many connections, while small ones come one after another over a
// connection of their own, and go on until the last large one has its status. A program that ends, a request without a
// status and a small one that fails are errors behind the report; how long things took is told.
package receivebench
