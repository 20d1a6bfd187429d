// Package simfleettest lets a test binary stand in for the programs that simfleet starts: Main in its TestMain, and its own path
// where a program's is asked for.
package simfleettest
