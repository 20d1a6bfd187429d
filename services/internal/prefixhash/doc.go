// Package prefixhash computes 64-bit keys for the prefixes of a request. A worker uses them to
// report which prefixes its cache holds, and a scheduler to find a worker that holds much of a
// request, without tokenizing it.
//
// The canonical bytes of a request are its prompt as UTF-8; or its token ids, each a little-endian
// uint32; or, for each message of its chat, role, 0x1f, content, 0x1e. Of a message with reasoning,
// calls or the id of a call, these follow: the reasoning, 0x1f, the id of the call that it answers;
// for each of its calls 0x1f, id, 0x1f, name, 0x1f, arguments; and 0x1e. They are cut into chunks of
// 256 bytes, and a key is
//
//	state 0 = XXH64(cache salt, seed: 1 of a prompt, 2 of token ids, 3 of a chat)
//	state n = XXH64(chunk n, seed: state n-1)
//	key     = state n, of the first 256*n canonical bytes
//
// Equal keys mean equal prefixes, salts and kinds of input. Bytes after the last whole chunk have
// no key. In a long request not every n has a key: up to 63 all have, from 64 on those divisible by
// 2, from 128 on those divisible by 4, and so on. So the longest common prefix of two requests that
// has a key is at least 31/32 of what whole chunks allow, and 16 MiB have 384 keys.
//
// A chat that sets template_name, parse_special_in_content or template_kwargs has another state 0:
//
//	state 0 = XXH64(choice bytes, seed: the state 0 from above)
//
// The choice bytes are the template's name, 0x1f, one byte that is 1 if special tokens in contents
// are recognised and else 0, and the variables as one value. A value is "z" for null, "f", "t"; "n"
// and the eight little-endian bytes of a number; "s", the length as little-endian uint32 and the
// bytes of a text; "l", the count as uint32 and the values of a list; "m", the count as uint32 and
// the entries of a mapping in ascending order of their keys' bytes, each a key as a text and a
// value.
//
// A chat with tools has yet another state 0, of the state 0 so far: the bytes are, for each tool, its
// name, description and parameters as texts, each as a text of a variable is.
//
// A key decides where a request is served, and never what is answered: a caller that makes two
// requests collide on purpose only sends them to one worker. Keys of different models are
// unrelated, so they must be stored by model digest. testdata/vectors.json has examples for other
// implementations.
package prefixhash
