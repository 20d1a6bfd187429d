// Package enginebench measures an engine against the device's own roofs: loading as a worker does it, prefill and decode
// by batch size, bytes moved, and the share of the roof reached.
//
// Run does everything and gives a Report. A share above 100 % or tokens that differ from what Generate gives make it an
// error: then something was counted wrongly or not computed, and no figure of the run can be trusted. It knows devices
// and model files; it refuses to know calls.
package enginebench
