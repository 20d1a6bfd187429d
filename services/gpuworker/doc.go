// Command millrace-worker serves the models of one device over gRPC.
//
// It opens the device, loads the models it is told to, and serves until SIGTERM: then readiness flips, running
// requests finish, and it exits 0. Flags are in package config; it refuses to know how anything is computed.
package main
