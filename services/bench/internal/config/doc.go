// Package config holds the flags that several benchmarks share, and is the one place of the program that reads the
// environment.
package config
