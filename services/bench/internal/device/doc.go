// Package device opens the device that the flags name: a native engine or the simulated one.
package device
