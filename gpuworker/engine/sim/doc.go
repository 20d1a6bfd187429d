// Package sim is an engine without arithmetic: fake tokens after a modelled time, for rigs of many workers on one machine
// and for tests of everything above the engine.
//
// A context, which is every token id from position 0 on as the KV blocks of the step hold them, is hashed; the hash gives
// a fixed distribution over the vocabulary, and seed, output index and position pick from it. So a continuation that
// lost, repeated or mixed up a token, a block or a seed goes on differently. The distribution is geometric over
// consecutive ids, which makes logprobs, ranks and candidates agree with each other; temperature 0 picks the best, any
// other temperature draws, top k bounds the draw, and of the other sampling parameters only allowed, suppressed and
// masked tokens and a bias of minus infinity have an effect.
//
// A slot that begins with a history names blocks that should hold it: where they hold other tokens, which a real engine cannot
// know, the context is one that neither has. Blocks copied out to host memory keep their hashes there.
//
// Slots, blocks, memory and steps are checked as a real engine checks them. Tensors are not kept, but their digests are.
// Vector codebooks alone are not simulated: they are those of package vq, bit by bit what every engine computes.
// Kind and Name of the device say "sim"; it refuses plain operations and measurements by not having them.
package sim
