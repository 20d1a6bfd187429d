// Package config reads the client's environment: the one place that does.
//
// Load is called once by main; flags override its result. It knows no command.
package config
