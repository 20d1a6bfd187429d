// Package selfcheck checks a device against the float64 reference: the fourteen plain operations and a short model.
//
// Run does the checks and returns one Row each; Print writes them as one table. It needs no file and no network, so an
// operator can run it on any machine before trusting it with a model. It refuses to know how devices compute.
package selfcheck
