// Package selfcheck compares a device with the float64 reference: the fourteen plain operations and
// a short model. Run returns one Row for each check; Print writes them as a table. It needs no file
// and no network, so an operator can run it on any machine before trusting it with a model.
package selfcheck
