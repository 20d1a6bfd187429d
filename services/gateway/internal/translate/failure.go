package translate

import (
	"strconv"
	"strings"

	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/internal/reason"
)

// Paths are the JSON paths of a request's fields.
type Paths struct {
	// Messages are the paths of the contract's chat messages; nil: messages[0] and so on.
	Messages []string
	// Fields are paths by that of the contract's field. The first map that has it counts. A field that
	// is in none has its own name without sampling, stopping, response or chat before it.
	Fields []map[string]string
}

// Failure adds the path of the request's field to the status of a call. It returns other errors as
// they are.
func (p Paths) Failure(err error) error {
	if _, ok := status.FromError(err); err == nil || !ok {
		return err
	}
	f := httpapi.FailureOf(err)
	if f.Param != "" {
		return f
	}
	switch f.Reason {
	case reason.UnknownModel, reason.ModelNotLoaded, reason.BadModelName, reason.ModelDraining, reason.AmbiguousModel:
		f.Param = "model"
		return f
	}
	f.Param = p.of(f.Field)
	return f
}

// of returns the path of a field of the contract.
func (p Paths) of(full string) string {
	field, index, indexed := strings.Cut(full, "[")
	if field == "chat.messages" && p.Messages != nil {
		number, rest, _ := strings.Cut(index, "]")
		if i, err := strconv.Atoi(number); err == nil && i >= 0 && i < len(p.Messages) {
			return p.Messages[i] + rest
		}
	}
	path := field
	if field == "expect_class_id" { // set for no other reason, see package resume
		path = "Last-Event-ID"
	}
	for _, group := range []string{"sampling.", "stopping.", "response.", "chat."} {
		path = strings.TrimPrefix(path, group)
	}
	for _, fields := range p.Fields {
		if known, ok := fields[field]; ok {
			path = known
			break
		}
	}
	switch {
	case !indexed:
	case field == "sampling.logit_bias":
		path += "." + strings.TrimSuffix(index, "]")
	default:
		path += "[" + index
	}
	return path
}
