// Package config is the worker's configuration: read from flags and environment once, checked once, never changed.
//
// Nothing else in the worker reads flags or the environment.
package config
