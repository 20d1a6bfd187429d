// Package longids decodes generation requests whose prompts are many token ids.
//
// Unmarshal takes the place of proto.Unmarshal where requests come in, with the same results and the same errors: of a long prompt of ids,
// protobuf's own reading takes more time than all else that is done with its request. What is no plain list of ids is left to protobuf.
//
// It refuses to know what a request must be: every value that protobuf takes is taken.
package longids
