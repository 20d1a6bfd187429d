// Package philox is the random generator Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel
// random numbers: as easy as 1, 2, 3" (SC 2011). A number is a pure function of a key and a
// counter. The generator has no state.
//
// Bits returns 64 uniform bits. Their purpose is part of the counter, which the caller chooses.
package philox
