// Package fairsem limits how much work runs at once and admits waiting work fairly among tenants.
//
// Acquire takes the tenant and the size of the work in bytes, waits for a slot, and returns a
// function that releases it. Small and large work have separate slots, so small work never waits
// for large work, whichever tenant sends it. Within each kind, package fairqueue orders the
// waiters: the tenant that was charged the fewest bytes comes first.
//
//	small (below LargeFrom)   -> queue by tenant -> Small slots
//	large (LargeFrom or more) -> queue by tenant -> Large slots, LargeBytes together
//
// The package bounds the work that runs, and not the work that waits. Callers bound the latter, for
// example by the bytes of the requests that they hold.
package fairsem
