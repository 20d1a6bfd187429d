package textlimit

import pb "github.com/millrace/millrace/proto/gen/millrace/v1"

// Bytes is the largest request and the largest response of both methods, in bytes of the wire.
const Bytes = 4 << 20

// Methods is the largest request by method, for rpc.ServerConfig.MaxMethodBytes.
func Methods() map[string]int {
	return map[string]int{
		pb.InferenceService_Tokenize_FullMethodName:   Bytes,
		pb.InferenceService_Detokenize_FullMethodName: Bytes,
	}
}
