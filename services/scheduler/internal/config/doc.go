// Package config has the scheduler's configuration: flags, their defaults and their bounds.
//
// Config.Register puts the flags on a flag set, Validate checks them once. Nothing else in the
// scheduler reads flags or the environment.
package config
