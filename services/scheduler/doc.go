// Command millrace-scheduler routes requests to workers and relays their token streams.
//
// It keeps no state of its own: everything it knows comes from the health streams of the workers it is told of, so any
// number of schedulers serve the same workers. main wires the packages under internal and is the only place that exits.
package main
