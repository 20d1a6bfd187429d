// Package packedids decodes generation requests whose prompts are long lists of token ids.
//
// Unmarshal replaces proto.Unmarshal where requests are received, with the same results and errors.
// For a long prompt of ids protobuf's own loop takes more time than everything else that is done
// with the request. Whatever is not one plain packed list is left to protobuf.
//
// The package validates nothing: it accepts every value that protobuf accepts.
package packedids
