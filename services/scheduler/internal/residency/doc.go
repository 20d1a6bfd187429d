// Package residency loads a model because a request wants it.
//
// A Residency stands between the relay and the placer. If the placer refuses a request because no
// worker serves its model, and says that a load would help, the Residency loads the model, lets all
// requests for it wait, and has them placed then.
//
// Which workers get the model is decided by package loading. Workers decide when it is unloaded,
// because they see every request.
package residency
