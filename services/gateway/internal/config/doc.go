// Package config has the gateway's configuration: flags, their defaults and their bounds.
//
// Config.Register puts the flags on a flag set, Validate checks them once. Nothing else in the
// gateway reads flags or the environment.
package config
