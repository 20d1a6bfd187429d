package relay

import (
	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// tenantField is the number of fairness_id in TokenizeRequest and DetokenizeRequest. A test
// compares it with the contract.
const tenantField = 13

// stripTenant removes fairness_id from the request and reports whether it did, so that the call can
// be sent again to the worker that refused it with err. Workers of an earlier version do not have
// that field in Tokenize and Detokenize, and a server with keys adds it to every request. Without
// the field the text is only not queued by tenant.
func (c *call) stripTenant(err error) bool {
	if c.streaming || rpc.Reason(err) != reason.UnknownField {
		return false
	}
	if c.method != pb.InferenceService_Tokenize_FullMethodName && c.method != pb.InferenceService_Detokenize_FullMethodName {
		return false
	}
	body := without(c.body, tenantField)
	stripped := len(body) < len(c.body)
	c.body = body
	return stripped
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
