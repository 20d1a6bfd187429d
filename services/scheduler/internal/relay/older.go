package relay

import (
	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Number of fairness_id in TokenizeRequest and DetokenizeRequest; a test ties it to the contract.
const tenantField = 13

// withoutTenant reports whether the call is to be sent again to the worker that refused it with err: one of an earlier version does not
// know fairness_id of Tokenize and Detokenize, which a server with keys puts into every request. The field is taken out; a text takes
// its turn without it.
func (c *call) withoutTenant(err error) bool {
	if c.begun || rpc.Reason(err) != reason.UnknownField {
		return false
	}
	if c.method != pb.InferenceService_Tokenize_FullMethodName && c.method != pb.InferenceService_Detokenize_FullMethodName {
		return false
	}
	body := without(c.body, tenantField)
	changed := len(body) < len(c.body)
	c.body = body
	return changed
}

// without returns a well-formed message without a field.
func without(message []byte, field protowire.Number) (rest []byte) {
	for len(message) > 0 {
		number, _, n := protowire.ConsumeField(message)
		if n < 0 {
			return append(rest, message...)
		}
		if number != field {
			rest = append(rest, message[:n]...)
		}
		message = message[n:]
	}
	return rest
}
