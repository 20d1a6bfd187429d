// Command millrace-scheduler routes requests to workers and relays their token streams.
//
// It keeps no state of its own: everything that it routes by comes from the health streams of its
// workers, so any number of schedulers can serve the same workers. main wires the packages under
// internal.
package main
