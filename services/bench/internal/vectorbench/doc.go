// Package vectorbench measures vector codebooks on a device against the device's own roofs: encoding from the caller's memory,
// whole iterations of a training, whole trainings, rows on their way to a trainer, and, where an address is given, the same by
// calls.
//
// Run does everything and gives a Report. Codes count only if sampled ones equal float64 brute force, and what calls give only if
// it equals what the device gave directly. A share above 100 % makes the run an error: then something was counted wrongly or not
// computed. Data are drawn from a seed, and Write writes them for other programs. The package knows devices and calls; it refuses
// to know files of models and codebooks.
package vectorbench
