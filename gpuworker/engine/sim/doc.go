// Package sim is an engine without arithmetic. It returns fake tokens after a modelled time, for
// many workers on one machine and for tests of everything above the engine.
//
// The context of a token is every token id from position 0 on, as the KV blocks of the step have
// them. Its hash selects a fixed distribution over the vocabulary, and seed, output index and
// position pick a token from it. So if a token, a block or a seed is lost, repeated or confused,
// the continuation differs. The distribution is geometric over consecutive ids, which makes
// logprobs, ranks and candidates consistent. Temperature 0 picks the best token, any other
// temperature draws, and top k bounds the draw. Of the other sampling parameters, only allowed,
// suppressed and masked tokens and a bias of minus infinity have an effect.
//
// A slot with a history names the blocks that should have it. If they have other tokens, which a
// real engine could not detect, the context is a third one. Blocks that are copied out to host
// memory keep their hashes there.
//
// Slots, blocks, memory and steps are checked as in a real engine. Tensors are reduced to their
// digests. Vector codebooks are not simulated: package vq computes them, with the same bits as
// every engine. Kind and Name of the device are "sim". It has no plain operations and no
// measurements.
package sim
