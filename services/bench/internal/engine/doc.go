// Package engine measures an engine as shares of the device's own roofs: loading as a worker does
// it, prefill and decode by batch size, mixes of both, and the bytes moved.
//
// Run returns a Report. A share above 100 % is an error, and so are tokens that differ from those
// of generate.Run or between batches: then something was counted wrongly or not computed, and no
// figure of the run can be trusted. A batchPlayer and a mixPlayer drive a runner directly, without
// the worker's step loop; sequence i has the same prompt in every batch, so that its tokens must
// be the same too.
//
// The package knows devices and model files, and nothing of calls.
package engine
