// Package proctest lets a test binary act as the programs that proc.StartFleet starts. The test
// calls Main in its TestMain and passes its own path as the path of each program.
package proctest
