package textlimit

import pb "github.com/millrace/millrace/proto/gen/millrace/v1"

// Bytes bounds the request and the response of both methods, in encoded bytes.
const Bytes = 4 << 20

// Methods returns the bound of requests by method, for rpc.ServerConfig.MaxMethodBytes.
func Methods() map[string]int {
	return map[string]int{
		pb.InferenceService_Tokenize_FullMethodName:   Bytes,
		pb.InferenceService_Detokenize_FullMethodName: Bytes,
	}
}
