// Package config is everything the scheduler can be told: flags, their defaults and their bounds.
//
// Flags registers them, Validate checks them once, and nothing else reads flags or the environment.
package config
