package auth

import (
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Refusals without their domain. None contains a token or a hash.

func noToken() rpc.Error {
	return rpc.Error{Code: codes.Unauthenticated, Reason: reason.NoToken, Message: "this server requires a token: send the metadata authorization: Bearer TOKEN"}
}

func unknownToken() rpc.Error {
	return rpc.Error{Code: codes.Unauthenticated, Reason: reason.UnknownToken, Message: "no key of this server has this token: it is wrong, or was revoked"}
}

func expired(k *Key) rpc.Error {
	at := k.Expires.UTC().Format(time.RFC3339)
	return rpc.Error{
		Code: codes.Unauthenticated, Reason: reason.TokenExpired, Message: fmt.Sprintf("key %s ended at %s", k.ID, at),
		Metadata: map[string]string{"key": k.ID, "expired": at},
	}
}

func revoked(k *Key) rpc.Error {
	return rpc.Error{
		Code: codes.Unauthenticated, Reason: reason.TokenRevoked, Message: fmt.Sprintf("key %s was revoked while the call ran", k.ID),
		Metadata: map[string]string{"key": k.ID},
	}
}

func rightMissing(k *Key, method string, n need) rpc.Error {
	wants := "no key has a right to it"
	if len(n.rights) > 0 {
		wants = "it needs " + list(n.rights)
	}
	return rpc.Error{
		Code: codes.PermissionDenied, Reason: reason.RightMissing,
		Message:  fmt.Sprintf("key %s may not call %s: %s, and the key has %s", k.ID, method, wants, list(k.Rights)),
		Metadata: map[string]string{"key": k.ID, "method": method, "needs": list(n.rights), "rights": list(k.Rights)},
	}
}

func otherTenant(k *Key, named string) rpc.Error {
	return rpc.Error{
		Code: codes.PermissionDenied, Reason: reason.OtherTenant,
		Message:  fmt.Sprintf("fairness_id is %.128q, and key %s is of tenant %s: leave fairness_id out", named, k.ID, k.Tenant),
		Metadata: map[string]string{"key": k.ID, "tenant": k.Tenant, "fairness_id": fmt.Sprintf("%.128s", named)},
	}
}

func priorityTooHigh(k *Key, priority, highest int32) rpc.Error {
	return rpc.Error{
		Code: codes.PermissionDenied, Reason: reason.PriorityTooHigh,
		Message:  fmt.Sprintf("priority is %d, and the highest of key %s is %d", priority, k.ID, highest),
		Metadata: map[string]string{"key": k.ID, "priority": strconv.Itoa(int(priority)), "max_priority": strconv.Itoa(int(highest))},
	}
}

// overQuota returns the refusal of a key that has reached a limit. after is when it has quota
// again, or 0 if that depends on the caller.
func overQuota(k *Key, over quota, after time.Duration) rpc.Error {
	f := rpc.Error{Code: codes.ResourceExhausted, RetryAfter: after}
	var limit, says string
	var number int
	switch over {
	case tooManyStreams:
		f.Reason, limit, number, says = reason.TooManyStreams, "max_streams", k.Limits.Streams, "has as many calls under way as it may, %d: let one end"
	case tooManyTokens:
		f.Reason, limit, number, says = reason.TooManyTokens, "tokens_per_minute", k.Limits.TokensPerMinute, "has used its %d tokens a minute: try later"
	default:
		f.Reason, limit, number, says = reason.TooManyRequests, "requests_per_minute", k.Limits.RequestsPerMinute, "has made its %d requests a minute: try later"
	}
	f.Message = fmt.Sprintf("key %s "+says, k.ID, number)
	f.Metadata = map[string]string{"key": k.ID, limit: strconv.Itoa(number)}
	return f
}
