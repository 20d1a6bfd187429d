// Package prefixkey names the beginnings of a request by 64-bit keys, so that a worker can tell which of them its cache covers
// and a scheduler can look for a worker that covers much of a request, without tokenising it.
//
// A request's canonical bytes are its prompt as UTF-8; or its token ids, each a little-endian uint32; or, of each message of
// its chat, role, 0x1f, content, 0x1e. They are cut into chunks of 256 bytes, and a key is
//
//	state 0 = XXH64(cache salt, seed: 1 of a prompt, 2 of token ids, 3 of a chat)
//	state n = XXH64(chunk n, seed: state n-1)
//	key     = state n, of the first 256*n canonical bytes
//
// so that equal keys mean equal beginnings, salt and kind of input, and what comes after the last whole chunk has no key. Of
// a long request not every n has one: up to 63 all, from 64 on those that 2 divides, from 128 on those that 4 divides, and so
// on. The longest beginning that two requests share and that has a key is thereby at least 31/32 of what whole chunks allow,
// and 16 MiB have 384 keys.
//
// A chat that chooses something with template_name, parse_special_in_content or template_kwargs begins with another state:
//
//	state 0 = XXH64(choice bytes, seed: the state 0 from above)
//
// Its choice bytes are the template's name, 0x1f, one byte that is 1 if special tokens in contents are recognised and else 0, and
// the variables as one value. A value is "z" of null, "f", "t"; "n" and the eight little-endian bytes of a number; "s", the
// length as little-endian uint32 and the bytes of a text; "l", the count as uint32 and the values of a list; "m", the count
// as uint32 and the entries of a mapping in ascending order of their keys' bytes, each a key as a text and a value.
//
// A key says where a request is answered soonest and never what is answered: who makes two requests collide on purpose gets
// them sent to one worker. Keys of different models have nothing to do with each other; who keeps them keeps them by model
// digest. testdata/vectors.json has examples for other implementations.
package prefixkey
