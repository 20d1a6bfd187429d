// Package model is the life cycle of models on one device: named files, loading with progress and verification,
// serving, residency checks, unloading.
//
// A Manager owns the device's models. Load brings a file into device memory and starts its step loop; Acquire gives
// the loaded Instance to a request and keeps it until released; Unload drains it. Every tensor's digest, computed by
// the engine from the resident bytes, is compared with the file's at load and again while serving.
//
// It knows files, devices and loops; it refuses to know calls, text and messages.
package model
