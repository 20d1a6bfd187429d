// Package vectors measures vector codebooks on a device, as shares of the device's own roofs:
// encoding from the caller's memory, iterations of a training, whole trainings and the upload of
// rows; and with a target, the same by calls.
//
// Codes count only if sampled ones equal brute force in float64, and the results of calls only if
// they equal the device's. A share above 100 % is an error, because then something was counted
// wrongly or not computed. Rows are drawn from a seed; Data.Write writes them for other programs.
// The package knows nothing of models.
package vectors
