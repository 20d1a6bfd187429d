// Package config has the flags that several commands share. It is the one place of the program that
// reads the environment.
package config
