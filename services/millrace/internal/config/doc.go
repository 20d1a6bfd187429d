// Package config reads the client's environment: the one place that does.
//
// Load is called once by main; flags override what it returns. It knows no command.
package config
