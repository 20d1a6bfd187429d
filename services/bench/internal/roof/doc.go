// Package roof says how fast a device could be at most, and how much of that a measurement reached.
//
// Measure asks a device for its own rates; WorkOf counts what a model's tokens cost; Roofs.Share relates the two. A
// multiply-add counts two operations, and only matrix weights count: two for each weight and token, those of the head
// for the positions that are sampled alone. Weights of different types are held against their own roofs.
//
// It knows sizes and rates; it runs no model.
package roof
