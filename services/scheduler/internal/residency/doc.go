// Package residency has a model loaded because a request wants it.
//
// A Residency stands before the placer that gives requests their workers. Where that one refuses because nobody serves the model,
// and says that a load would help, it starts one load of it, lets the request and all others for the model wait for that, and has
// them placed then. A load that failed is told to all of them, and to those that come until it is tried again.
//
// One load happens in this process; two schedulers choose the same worker, where loads of one name join. It refuses to know where
// a model goes, which package loading finds out, and when it goes again, which workers decide: they see every request.
package residency
