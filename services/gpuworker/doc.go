// Command millrace-worker serves the models of one device over gRPC.
//
// It opens the device, loads the models of --load, and serves until SIGTERM: then it reports not
// ready, running requests finish, and it exits 0. main wires the packages under internal; how
// anything is computed is in the library gpuworker.
package main
